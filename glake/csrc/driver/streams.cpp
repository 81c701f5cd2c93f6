// Events and streams. Every call is made in relaxed capture mode.
#include <algorithm>

#include "driver/calls.h"
#include "driver/device_scope.h"
#include "driver/relaxed_scope.h"

namespace glake {

Status Driver::create_event(int device, EventId* event, bool sleeping) {
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  CUevent e = nullptr;
  unsigned flags = CU_EVENT_DISABLE_TIMING;
  if (sleeping) flags |= CU_EVENT_BLOCKING_SYNC;
  CUresult r = table_->cuEventCreate(&e, flags);
  *event = reinterpret_cast<EventId>(e);
  return status(r);
}

Status Driver::destroy_event(EventId event) {
  return status(table_->cuEventDestroy(event_of(event)));
}

Status Driver::record(int device, EventId event, StreamHandle stream) {
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  count(Call::kRecord);
  return status(table_->cuEventRecord(event_of(event), stream_of(stream)));
}

Status Driver::query(EventId event) {
  RelaxedScope scope(*this);
  if (!scope.status().ok()) return scope.status();
  return status(table_->cuEventQuery(event_of(event)));
}

Status Driver::create_timer(int device, EventId* event) {
  if (table_->cuEventElapsedTime == nullptr) return status(CUDA_ERROR_NOT_SUPPORTED);
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  CUevent e = nullptr;
  CUresult r = table_->cuEventCreate(&e, CU_EVENT_DEFAULT);
  *event = reinterpret_cast<EventId>(e);
  return status(r);
}

Status Driver::elapsed_ns(EventId start, EventId end, uint64_t* ns) {
  *ns = 0;
  RelaxedScope scope(*this);
  if (!scope.status().ok()) return scope.status();
  float milliseconds = 0;
  CUresult r = table_->cuEventElapsedTime(&milliseconds, event_of(start), event_of(end));
  if (r == CUDA_SUCCESS) *ns = static_cast<uint64_t>(std::max(milliseconds, 0.0F) * 1e6);
  return status(r);
}

Status Driver::wait_host(EventId event) {
  RelaxedScope scope(*this);
  if (!scope.status().ok()) return scope.status();
  return status(table_->cuEventSynchronize(event_of(event)));
}

Status Driver::wait_stream(int device, StreamHandle stream, EventId event) {
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  count(Call::kWait);
  return status(table_->cuStreamWaitEvent(stream_of(stream), event_of(event), 0));
}

Status Driver::is_capturing(int device, StreamHandle stream, bool* yes) {
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult r = table_->cuStreamIsCapturing(stream_of(stream), &capture);
  *yes = capture != CU_STREAM_CAPTURE_STATUS_NONE;
  return status(r);
}

void* Driver::other_context(int device, StreamHandle stream) {
  // Default streams are those of the context that is current.
  if (stream == 0 || is_thread_stream(stream) || table_->cuStreamGetCtx == nullptr) return nullptr;
  DeviceScope scope(*this, device);
  CUcontext context = nullptr;
  if (!scope.status().ok() || table_->cuStreamGetCtx(stream_of(stream), &context) != CUDA_SUCCESS) {
    return nullptr;
  }
  return context == context_of(device) ? nullptr : context;
}

Status Driver::stream_number(int device, StreamHandle stream, uint64_t* number) {
  *number = 0;
  if (table_->cuStreamGetId == nullptr) return {};
  DeviceScope scope(*this, device);
  if (!scope.status().ok()) return scope.status();
  unsigned long long id = 0;
  CUresult r = table_->cuStreamGetId(stream_of(stream), &id);
  *number = id;
  return status(r);
}

}  // namespace glake
