// Two streams and one copy: a copy between two GPUs begins after the work of both, and both wait.
#include "core/process.h"
#include "transfer/engine.h"
#include "transfer/plain.h"

namespace glake::transfer {

uint64_t Engine::begin(Request request) {
  use_gpus(request);
  const bool same =
      request.also_stream == request.stream && request.also_device == request.stream_device;
  if (!request.ordered) {
    const Guard range = guard_of(request.parts);
    const uint64_t id = start(std::move(request));
    guard(range, id);
    return id;
  }
  if (!request.also_ordered || same) return start(std::move(request));
  const int device = request.stream_device, other = request.also_device;
  const StreamHandle stream = request.stream, also = request.also_stream;
  if (other < 0 || other >= devices_) {
    throw Error(GLAKE_INVALID_DEVICE, "no " + device_text(other) + " for the stream");
  }
  open_device(device);
  open_device(other);
  bool captured[2] = {false, false};
  Status s = driver_.is_capturing(device, stream, &captured[0]);
  if (s.ok()) s = driver_.is_capturing(other, also, &captured[1]);
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "asking about the streams: " + driver_.describe(s));
  if (captured[0] != captured[1]) {
    throw Error(GLAKE_COPY_REFUSED,
                "one of the two GPUs' streams is being captured, the other is not: capture both, "
                "or name the stream the copy belongs to");
  }
  follow(device, stream, other, also);
  const uint64_t id = start(std::move(request));
  try {
    stream_wait(id, other, also);
  } catch (const Error&) {
    // The copy is under way and cannot be undone; nobody is left holding it.
    std::string text;
    wait(id, UINT64_MAX, &text);
    release(id);
    throw;
  }
  return id;
}

// Later work of `stream` waits for what `other` holds now.
void Engine::follow(int device, StreamHandle stream, int other_device, StreamHandle other) {
  EventId event = 0;
  Status s = driver_.create_event(other_device, &event);
  if (s.ok()) {
    s = driver_.record(other_device, event, other);
    if (s.ok()) s = driver_.wait_stream(device, stream, event);
    driver_.destroy_event(event);  // the driver keeps what is enqueued of it
  }
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "joining two streams: " + driver_.describe(s));
}

// One whose context is open, to ask the driver in: a GPU the caller names or uses already, since
// another one's context would cost memory there.
int Engine::some_device(int first, int second) {
  for (int named : {first, second}) {
    if (named < 0 || named >= devices_) continue;
    open_device(named);
    return named;
  }
  for (int device = 0; device < devices_; ++device) {
    if (opened_[static_cast<size_t>(device)].load(std::memory_order_acquire)) return device;
  }
  const int device = process_.used_device();
  open_device(device);
  return device;
}

HostPins& Engine::pins() {
  pins_.use(some_device(-1, -1));
  return pins_;
}

void Engine::place_of(const void* ptr, int* device, int* pinned) {
  DeviceScope scope(driver_, some_device(-1, -1));
  PointerFacts facts;
  Status s = scope.status();
  if (s.ok()) s = driver_.pointer_facts(reinterpret_cast<Address>(ptr), &facts);
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "asking about " + hex(ptr) + driver_.describe(s));
  using Kind = PointerFacts::Kind;
  const bool on_gpu = facts.kind == Kind::kDevice || facts.kind == Kind::kManaged;
  *device = on_gpu ? facts.device : GLAKE_HOST;
  *pinned = facts.kind != Kind::kUnregistered;
}

}  // namespace glake::transfer
