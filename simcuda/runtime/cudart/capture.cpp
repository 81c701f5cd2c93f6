// Stream capture.
#include "cudart.h"

using namespace cudart;  // NOLINT: this file is nothing but C face

namespace {

Error capture_info(CUstream stream, int* status, unsigned long long* id, CUgraph* graph,
                   const CUgraphNode** dependencies, size_t* count) {
  if (status == nullptr) return told(kInvalidValue);
  CUstreamCaptureStatus known = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t number = 0;
  const CUresult result =
      driver().capture_info(stream, &known, &number, graph, dependencies, count);
  *status = static_cast<int>(known);
  if (id != nullptr) *id = number;
  return told(result);
}

}  // namespace

CUDART(cudaStreamBeginCapture)(CUstream stream, int mode) {
  CUDART_READY();
  return told(driver().cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
}

CUDART(cudaStreamBeginCaptureToGraph)
(CUstream stream, CUgraph graph, const CUgraphNode* dependencies, const void* edges, size_t count,
 int mode) {
  CUDART_READY();
  return OPTIONAL(cuStreamBeginCaptureToGraph, stream, graph, dependencies, edges, count, mode);
}

CUDART(cudaStreamEndCapture)(CUstream stream, CUgraph* graph) {
  CUDART_READY();
  return told(driver().cuStreamEndCapture(stream, graph));
}

CUDART(cudaStreamIsCapturing)(CUstream stream, int* status) {
  CUDART_READY();
  if (status == nullptr) return told(kInvalidValue);
  CUstreamCaptureStatus known = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver().cuStreamIsCapturing(stream, &known);
  *status = static_cast<int>(known);
  return told(result);
}

#if CUDART_MAJOR >= 13
CUDART(cudaStreamGetCaptureInfo)
(CUstream stream, int* status, unsigned long long* id, CUgraph* graph,
 const CUgraphNode** dependencies, const void** edges, size_t* count) {
  CUDART_READY();
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, status, id, graph, dependencies, count);
}

CUDART(cudaStreamUpdateCaptureDependencies)
(CUstream stream, CUgraphNode* dependencies, const void* edges, size_t count, unsigned flags) {
  CUDART_READY();
  return OPTIONAL(cuStreamUpdateCaptureDependencies, stream, dependencies, edges, count, flags);
}
#else
CUDART(cudaStreamGetCaptureInfo_v2)
(CUstream stream, int* status, unsigned long long* id, CUgraph* graph,
 const CUgraphNode** dependencies, size_t* count) {
  CUDART_READY();
  return capture_info(stream, status, id, graph, dependencies, count);
}

CUDART(cudaStreamGetCaptureInfo_v3)
(CUstream stream, int* status, unsigned long long* id, CUgraph* graph,
 const CUgraphNode** dependencies, const void** edges, size_t* count) {
  CUDART_READY();
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, status, id, graph, dependencies, count);
}

CUDART(cudaStreamUpdateCaptureDependencies)
(CUstream stream, CUgraphNode* dependencies, size_t count, unsigned flags) {
  CUDART_READY();
  return OPTIONAL(cuStreamUpdateCaptureDependencies, stream, dependencies, nullptr, count, flags);
}
#endif

CUDART(cudaThreadExchangeStreamCaptureMode)(int* mode) {
  CUDART_READY();
  if (mode == nullptr) return told(kInvalidValue);
  auto exchanged = static_cast<CUstreamCaptureMode>(*mode);
  const CUresult result = driver().cuThreadExchangeStreamCaptureMode(&exchanged);
  *mode = static_cast<int>(exchanged);
  return told(result);
}
