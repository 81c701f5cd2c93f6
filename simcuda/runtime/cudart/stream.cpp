// Streams, host functions and events.
#include "cudart.h"
#include "event.h"

using namespace cudart;  // NOLINT: this file is nothing but C face

CUDART(cudaStreamCreate)(CUstream* stream) {
  CUDART_READY();
  return told(driver().cuStreamCreate(stream, 0));
}

CUDART(cudaStreamCreateWithFlags)(CUstream* stream, unsigned flags) {
  CUDART_READY();
  return told(driver().cuStreamCreate(stream, flags));
}

CUDART(cudaStreamCreateWithPriority)(CUstream* stream, unsigned flags, int priority) {
  CUDART_READY();
  return told(driver().cuStreamCreateWithPriority(stream, flags, priority));
}

CUDART(cudaStreamDestroy)(CUstream stream) {
  CUDART_READY();
  return told(driver().cuStreamDestroy(stream));
}

CUDART(cudaStreamGetPriority)(CUstream stream, int* priority) {
  CUDART_READY();
  return told(driver().cuStreamGetPriority(stream, priority));
}

CUDART(cudaStreamGetFlags)(CUstream stream, unsigned* flags) {
  CUDART_READY();
  return told(driver().cuStreamGetFlags(stream, flags));
}

CUDART(cudaStreamGetId)(CUstream stream, unsigned long long* id) {
  CUDART_READY();
  return told(driver().cuStreamGetId(stream, id));
}

CUDART(cudaStreamQuery)(CUstream stream) {
  CUDART_READY();
  return told(driver().cuStreamQuery(stream));
}

CUDART(cudaStreamSynchronize)(CUstream stream) {
  CUDART_READY();
  return told(driver().cuStreamSynchronize(stream));
}

CUDART(cudaStreamWaitEvent)(CUstream stream, CUevent event, unsigned flags) {
  CUDART_READY();
  return told(driver().cuStreamWaitEvent(stream, event, flags));
}

CUDART(cudaLaunchHostFunc)(CUstream stream, HostFunction function, void* data) {
  CUDART_READY();
  return told(driver().cuLaunchHostFunc(stream, function, data));
}

namespace {

struct Callback {
  CUstream stream;
  StreamCallback function;
  void* data;
};

void call_back(void* it) {
  auto* callback = static_cast<Callback*>(it);
  callback->function(callback->stream, kSuccess, callback->data);
  delete callback;
}

}  // namespace

// "flags: reserved for future use, must be 0". A capturing stream takes no callbacks
// (cudaStreamAddCallback; cudaLaunchHostFunc works there).
CUDART(cudaStreamAddCallback)
(CUstream stream, StreamCallback function, void* data, unsigned flags) {
  CUDART_READY();
  if (function == nullptr || flags != 0) return told(kInvalidValue);
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult known = driver().cuStreamIsCapturing(stream, &capturing);
  if (known != CUDA_SUCCESS) return told(known);
  if (capturing != CU_STREAM_CAPTURE_STATUS_NONE) {
    return told(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  auto* callback = new Callback{stream, function, data};
  const CUresult result = driver().cuLaunchHostFunc(stream, call_back, callback);
  if (result != CUDA_SUCCESS) delete callback;
  return told(result);
}

CUDART(cudaEventCreateWithFlags)(CUevent* event, unsigned flags) {
  CUDART_READY();
  return told(driver().cuEventCreate(event, flags));
}

CUDART(cudaEventCreate)(CUevent* event) {
  CUDART_READY();
  return told(driver().cuEventCreate(event, 0));
}

CUDART(cudaEventDestroy)(CUevent event) {
  CUDART_READY();
  forget_shared(event);
  return told(driver().cuEventDestroy(event));
}

namespace {

// After a record. Another process can use the event as well: see cudaIpcGetEventHandle.
cudart::Error recorded(CUevent event, CUresult made) {
  if (made == CUDA_SUCCESS && is_shared(event)) made = driver().cuEventSynchronize(event);
  return told(made);
}

}  // namespace

CUDART(cudaEventRecordWithFlags)(CUevent event, CUstream stream, unsigned flags) {
  CUDART_READY();
  return recorded(event, driver().cuEventRecordWithFlags(event, stream, flags));
}

CUDART(cudaEventRecord)(CUevent event, CUstream stream) {
  CUDART_READY();
  return recorded(event, driver().cuEventRecord(event, stream));
}

CUDART(cudaEventQuery)(CUevent event) {
  CUDART_READY();
  return told(driver().cuEventQuery(event));
}

CUDART(cudaEventSynchronize)(CUevent event) {
  CUDART_READY();
  return told(driver().cuEventSynchronize(event));
}

CUDART(cudaEventElapsedTime)(float* milliseconds, CUevent start, CUevent end) {
  CUDART_READY();
  return told(driver().cuEventElapsedTime(milliseconds, start, end));
}
