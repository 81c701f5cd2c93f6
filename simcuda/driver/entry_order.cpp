// Stream work without bytes: host functions, values written and waited for, and capture.
#include "driver.h"
#include "prototypes.h"
#include "work.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

CUresult value_work(Symbol symbol, CUstream handle, Op::Kind kind, CUdeviceptr address,
                    uint64_t value, unsigned width, unsigned flags, unsigned known) {
  return on_stream(symbol, handle, [&](Driver& driver, Stream& stream) -> CUresult {
    const bool reserved = driver.memory.find(address) != nullptr;
    if ((flags & ~known) != 0 || address % width != 0 ||
        (!reserved && !driver.host.pinned(address, width))) {
      return fail(CUDA_ERROR_INVALID_VALUE,
                  "unknown flags, or an address that is unaligned or unknown");
    }
    const auto op = std::make_shared<Op>();
    op->kind = kind;
    op->bytes = op->width = width;
    op->value = value;
    op->flags = flags;
    op->dst = {address, 0, !reserved, stream.device};
    if (kind == Op::Kind::kWaitValue) driver.scheduler->foreseen().give_up();
    return submit(&driver, &stream, op);
  });
}

// Fills in every result for a capturing stream, and only *status for other streams.
CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                      CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
  return on_stream(CALL(cuStreamGetCaptureInfo), handle, [&](Driver&, Stream& stream) -> CUresult {
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Capture* capture = stream.capture.get();
    *status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE : capture->status;
    if (capture == nullptr) return CUDA_SUCCESS;
    if (id != nullptr) *id = capture->id;
    if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(capture->graph_id);
    stream.told.clear();
    for (const uint32_t place : stream.after) {
      stream.told.push_back(reinterpret_cast<CUgraphNode>(capture->graph->nodes[place].id));
    }
    if (dependencies != nullptr) *dependencies = stream.told.data();
    if (count != nullptr) *count = stream.told.size();
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  return on_stream(CALL(cuLaunchHostFunc), handle, [&](Driver& driver, Stream& stream) -> CUresult {
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (driver.ticking()) {
      return fail(CUDA_ERROR_NOT_SUPPORTED,
                  "no host functions in phantom mode with complete_after: nothing runs them");
    }
    const auto op = std::make_shared<Op>();
    op->kind = Op::Kind::kHostFunction;
    op->function = function;
    op->data = data;
    return submit(&driver, &stream, op);
  });
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                              unsigned int flags) {
  return value_work(CALL(cuStreamWriteValue32), stream, Op::Kind::kWriteValue, address, value, 4,
                    flags, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned int flags) {
  return value_work(CALL(cuStreamWriteValue64), stream, Op::Kind::kWriteValue, address, value, 8,
                    flags, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                             unsigned int flags) {
  return value_work(CALL(cuStreamWaitValue32), stream, Op::Kind::kWaitValue, address, value, 4,
                    flags, 3);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                             unsigned int flags) {
  return value_work(CALL(cuStreamWaitValue64), stream, Op::Kind::kWaitValue, address, value, 8,
                    flags, 3);
}

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  return on_stream(CALL(cuStreamBeginCapture), handle, [&](Driver& driver, Stream& stream) {
    return driver.captures.begin(&stream, mode);
  });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return on_stream(CALL(cuStreamEndCapture), handle,
                   [&](Driver& driver, Stream& stream) -> CUresult {
                     if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
                     return driver.captures.end(&stream, graph);
                   });
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return on_stream(CALL(cuStreamIsCapturing), handle, [&](Driver& driver, Stream& stream) {
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // This returns an error, but unlike work on the legacy stream it breaks no capture.
    if (driver.captures.implicated(stream)) {
      return fail(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "a blocking stream is capturing");
    }
    *status = stream.capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE : stream.capture->status;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies,
                                   size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, count);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** dependencies,
                                   const CUgraphEdgeData** edges, size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, status, id, graph, dependencies, count);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return call(CALL(cuThreadExchangeStreamCaptureMode), 0, [&](Driver&) -> CUresult {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, capture_mode);
    return CUDA_SUCCESS;
  });
}
