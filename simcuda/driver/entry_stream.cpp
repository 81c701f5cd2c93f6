// Streams and events.
#include "driver.h"
#include "prototypes.h"
#include "simcuda/simcuda.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

// Finds the event that a call names. The body may release the lock, and then the event may end.
template <class Body>
CUresult on_event(Symbol symbol, CUevent handle, Body&& body) {
  return call(symbol, 0, [&](Driver& driver) -> CUresult {
    Lock lock(driver.mutex);
    Event* event = driver.streams.event(handle);
    if (event == nullptr) return bad_handle("event");
    if (event->capture != nullptr) {
      return fail(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture");
    }
    const Context* context = driver.contexts.find(event->context);
    const CUresult lost = driver.scheduler->lost().error(context != nullptr ? context->device : -1);
    if (lost != CUDA_SUCCESS) return lost;
    return body(driver, *event, &lock);
  });
}

CUresult create_stream(Symbol symbol, CUstream* result, unsigned flags, int priority) {
  return in_context(symbol, 0, [&](Driver& driver, Context& context) -> CUresult {
    if (result == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuStreamCreate: flags");
    }
    const int clamped = priority > 0 ? 0 : (priority < -5 ? -5 : priority);
    *result = reinterpret_cast<CUstream>(driver.streams.create(context, flags, clamped));
    return CUDA_SUCCESS;
  });
}

CUresult record(Symbol symbol, CUevent handle, CUstream stream_handle, unsigned flags) {
  return on_stream(symbol, stream_handle, [&](Driver& driver, Stream& stream) -> CUresult {
    Event* event = driver.streams.event(handle);
    if (event == nullptr) return bad_handle("event");
    if ((flags & ~CU_EVENT_RECORD_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (event->context != stream.context) {
      return fail(CUDA_ERROR_INVALID_HANDLE, "the event and the stream are of different contexts");
    }
    bool taken = false;
    const CUresult result = driver.captures.take(&stream, &taken);
    if (result != CUDA_SUCCESS) return result;
    if (taken && (flags & CU_EVENT_RECORD_EXTERNAL) != 0) {
      GraphNode node;
      node.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
      node.event = reinterpret_cast<uint64_t>(handle);
      node.op = std::make_shared<Op>();
      node.op->device = stream.device;
      driver.captures.add_node(&stream, std::move(node));
    } else if (taken) {
      event->capture = stream.capture;
      event->after = stream.after;
    } else if (driver.ticking()) {
      driver.tick_clock.record(event, &stream);
    } else {
      event->op = std::make_shared<Op>();
      event->capture = nullptr;
      event->recorded = true;
      event->stream = stream.id;
      event->op->answers_for = std::exchange(stream.unmarked, {});
      driver.scheduler->enqueue(&stream, event->op);
    }
    return CUDA_SUCCESS;
  });
}

// "Event is captured in the graph as an external event node when performing stream capture": CUDA
// Driver API, CU_EVENT_WAIT_EXTERNAL.
CUresult wait_external(Driver* driver, Stream* stream, CUevent event) {
  bool taken = false;
  const CUresult result = driver->captures.take(stream, &taken);
  if (result != CUDA_SUCCESS) return result;
  GraphNode node;
  node.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  node.event = reinterpret_cast<uint64_t>(event);
  node.op = std::make_shared<Op>();
  node.op->device = stream->device;
  driver->captures.add_node(stream, std::move(node));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  return create_stream(CALL(cuStreamCreate), stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return create_stream(CALL(cuStreamCreateWithPriority), stream, flags, priority);
}

CUresult cuStreamDestroy(CUstream handle) {
  return locked(CALL(cuStreamDestroy), 0, [&](Driver& driver) -> CUresult {
    if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
      return bad_handle("created stream");
    }
    Stream* stream = driver.streams.resolve(handle, nullptr);
    if (stream == nullptr) return bad_handle("stream");
    driver.captures.abandon(*stream);
    driver.scheduler->forget(stream->id);
    driver.streams.remove(stream->id, driver.options.reuse_handles);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return on_stream_blocking(
      CALL(cuStreamQuery), handle, [&](Driver& driver, uint64_t id, Lock* lock) -> CUresult {
        Stream* stream = driver.streams.find(id);
        const CUresult result = driver.captures.check_blocking(stream);
        if (result != CUDA_SUCCESS) return result;
        if (driver.ticking()) {
          return driver.tick_clock.complete(*stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
        }
        const std::vector<OpPtr> copies = stream->unasked;
        const CUresult state = driver.scheduler->waits().query(lock, OpPtr(stream->tail));
        return state != CUDA_SUCCESS ? state : tell_faults(copies, false);
      });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return on_stream_blocking(
      CALL(cuStreamSynchronize), handle, [&](Driver& driver, uint64_t id, Lock* lock) -> CUresult {
        Stream* stream = driver.streams.find(id);
        const CUresult result = driver.captures.check_blocking(stream);
        if (result != CUDA_SUCCESS) return result;
        driver.tick_clock.synchronize(stream);
        const auto copies = std::exchange(stream->unasked, {});
        const CUresult state = driver.scheduler->waits().wait(lock, OpPtr(stream->tail));
        if (driver.pools.any()) driver.pools.waited(&driver);
        return state != CUDA_SUCCESS ? state : tell_faults(copies, false);
      });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned int flags) {
  return on_stream(CALL(cuStreamWaitEvent), handle,
                   [&](Driver& driver, Stream& stream) -> CUresult {
                     const Event* event = driver.streams.event(event_handle);
                     if (event == nullptr) return bad_handle("event");
                     if ((flags & ~CU_EVENT_WAIT_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
                     const bool external = (flags & CU_EVENT_WAIT_EXTERNAL) != 0;
                     if (external && stream.capture != nullptr) {
                       return wait_external(&driver, &stream, event_handle);
                     }
                     bool taken = false;
                     const CUresult result = driver.captures.join(&stream, *event, &taken);
                     if (result != CUDA_SUCCESS || taken) return result;
                     if (driver.ticking()) driver.tick_clock.wait(&stream, *event);
                     if (event->op != nullptr && !event->op->applied) {
                       driver.scheduler->enqueue(&stream, std::make_shared<Op>(), event->op);
                     }
                     return CUDA_SUCCESS;
                   });
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  return on_stream(CALL(cuStreamGetPriority), handle, [&](Driver&, Stream& stream) -> CUresult {
    if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream.priority;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  return on_stream(CALL(cuStreamGetFlags), handle, [&](Driver&, Stream& stream) -> CUresult {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream.flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return on_stream(CALL(cuStreamGetCtx), handle, [&](Driver&, Stream& stream) -> CUresult {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *context = as_context(stream.context);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return on_stream(CALL(cuStreamGetId), handle, [&](Driver&, Stream& stream) -> CUresult {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = stream.number;
    return CUDA_SUCCESS;
  });
}

CUresult cuEventCreate(CUevent* result, unsigned int flags) {
  return in_context(CALL(cuEventCreate), 0, [&](Driver& driver, Context& context) -> CUresult {
    constexpr unsigned kKnown =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    const bool bad = (flags & ~kKnown) != 0 || ((flags & CU_EVENT_INTERPROCESS) != 0 &&
                                                (flags & CU_EVENT_DISABLE_TIMING) == 0);
    if (result == nullptr || bad) return fail(CUDA_ERROR_INVALID_VALUE, "cuEventCreate: flags");
    Event event;
    event.context = context.id;
    event.flags = flags;
    *result = reinterpret_cast<CUevent>(driver.streams.events().add(event));
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy(CUevent handle) {
  return locked(CALL(cuEventDestroy), 0, [&](Driver& driver) -> CUresult {
    if (driver.streams.event(handle) == nullptr) return bad_handle("event");
    driver.streams.events().remove(reinterpret_cast<uint64_t>(handle));
    return CUDA_SUCCESS;
  });
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return record(CALL(cuEventRecord), event, stream, 0);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  return record(CALL(cuEventRecordWithFlags), event, stream, flags);
}

CUresult cuEventQuery(CUevent handle) {
  return on_event(CALL(cuEventQuery), handle,
                  [&](Driver& driver, Event& event, Lock* lock) -> CUresult {
                    const CUresult unsafe = driver.captures.check_unsafe();
                    if (unsafe != CUDA_SUCCESS || !event.recorded) return unsafe;
                    if (const OpPtr op = event.op) {
                      const CUresult state = driver.scheduler->waits().query(lock, op);
                      return state != CUDA_SUCCESS ? state : tell_faults(op->answers_for, true);
                    }
                    return driver.tick_clock.complete(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
                  });
}

namespace {

// `timeout_ns` is on the clock of the schedule; UINT64_MAX: there is none.
CUresult wait_event(Symbol symbol, CUevent handle, uint64_t timeout_ns) {
  return on_event(symbol, handle, [&](Driver& driver, Event& event, Lock* lock) -> CUresult {
    const CUresult unsafe = driver.captures.check_unsafe();
    if (unsafe != CUDA_SUCCESS || !event.recorded) return unsafe;
    if (const OpPtr op = event.op) {
      const uint64_t now = driver.scheduler->clock().now_ns();
      const uint64_t deadline = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
      const CUresult state = driver.scheduler->waits().wait(lock, op, deadline);
      if (driver.pools.any()) driver.pools.waited(&driver);
      return state != CUDA_SUCCESS ? state : tell_faults(op->answers_for, true);
    }
    Stream* stream = driver.streams.find(event.stream);
    if (stream != nullptr) driver.tick_clock.synchronize(stream, event.seq);
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult cuEventSynchronize(CUevent handle) {
  return wait_event(CALL(cuEventSynchronize), handle, UINT64_MAX);
}

// The books count it as the query with which a caller of a real driver would poll.
int simcuda_wait_event(CUevent event, uint64_t timeout_ns) {
  return wait_event(CALL(cuEventQuery), event, timeout_ns);
}

int simcuda_wait_any(CUevent const* handles, size_t count, uint64_t timeout_ns) {
  return call(CALL(cuEventQuery), 0, [&](Driver& driver) -> CUresult {
    Lock lock(driver.mutex);
    const CUresult unsafe = driver.captures.check_unsafe();
    if (unsafe != CUDA_SUCCESS) return unsafe;
    std::vector<OpPtr> ops;
    for (size_t i = 0; i < count; ++i) {
      const Event* event = driver.streams.event(handles[i]);
      if (event == nullptr) return bad_handle("event");
      if (event->op == nullptr) return CUDA_SUCCESS;
      ops.push_back(event->op);
    }
    const uint64_t now = driver.scheduler->clock().now_ns();
    const uint64_t deadline = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
    return driver.scheduler->waits().wait_any(&lock, ops, deadline);
  });
}

namespace {

CUresult elapsed(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  return locked(CALL(cuEventElapsedTime), 0, [&](Driver& driver) -> CUresult {
    const Event* start = driver.streams.event(start_handle);
    const Event* end = driver.streams.event(end_handle);
    if (start == nullptr || end == nullptr) return bad_handle("event");
    if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (start->capture != nullptr || end->capture != nullptr) {
      return fail(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture");
    }
    if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0 || start->op == nullptr ||
        end->op == nullptr) {
      return fail(CUDA_ERROR_INVALID_HANDLE, "an event was not recorded, or has no timing");
    }
    if (!start->op->applied || !end->op->applied) return CUDA_ERROR_NOT_READY;
    *milliseconds = static_cast<float>(
        (static_cast<double>(end->op->end_ns) - static_cast<double>(start->op->end_ns)) / 1e6);
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return elapsed(milliseconds, start, end);
}

CUresult cuCtxSynchronize() {
  return blocking(
      CALL(cuCtxSynchronize), [&](Driver& driver, Context& context, Lock* lock) -> CUresult {
        const CUresult unsafe = driver.captures.check_context(context.id);
        if (unsafe != CUDA_SUCCESS) return unsafe;
        driver.tick_clock.synchronize(&context);
        std::vector<OpPtr> copies;
        driver.streams.for_each([&](uint64_t, Stream& stream) {
          if (stream.device != context.device) return;
          copies.insert(copies.end(), stream.unasked.begin(), stream.unasked.end());
          stream.unasked.clear();
        });
        const CUresult state = driver.scheduler->waits().wait_device(lock, context.device);
        if (driver.pools.any()) driver.pools.waited(&driver);
        return state != CUDA_SUCCESS ? state : tell_faults(copies, false);
      });
}
