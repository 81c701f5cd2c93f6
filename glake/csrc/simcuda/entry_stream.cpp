// Streams and events.
#include "driver.h"
#include "prototypes.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

CUresult bad_handle(const char* what) {
  return fail(CUDA_ERROR_INVALID_HANDLE, std::string("not a live ") + what);
}

// With the stream a call names; the default ones need a current context.
template <class Body>
CUresult on_stream(Symbol symbol, CUstream handle, Body&& body) {
  return locked(symbol, 0, [&](Driver& driver) -> CUresult {
    const Context* current = driver.contexts.current();
    Stream* stream = driver.streams.resolve(handle, current);
    if (stream != nullptr) return body(driver, *stream);
    return current == nullptr ? no_context() : bad_handle("stream");
  });
}

template <class Body>
CUresult on_event(Symbol symbol, CUevent handle, Body&& body) {
  return locked(symbol, 0, [&](Driver& driver) -> CUresult {
    Event* event = driver.streams.find(handle);
    return event == nullptr ? bad_handle("event") : body(driver, *event);
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
    Event* event = driver.streams.find(handle);
    if (event == nullptr) return bad_handle("event");
    if ((flags & ~CU_EVENT_RECORD_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (event->context != stream.context) {
      return fail(CUDA_ERROR_INVALID_HANDLE, "the event and the stream are of different contexts");
    }
    driver.streams.tick_record(event, stream);
    return CUDA_SUCCESS;
  });
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
    driver.streams.streams.remove(stream->id);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return on_stream(CALL(cuStreamQuery), handle, [&](Driver&, Stream&) { return CUDA_SUCCESS; });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return on_stream(CALL(cuStreamSynchronize), handle, [&](Driver& driver, Stream& stream) {
    driver.streams.tick_synchronize(&stream, driver.streams.sequence());
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned int flags) {
  return on_stream(CALL(cuStreamWaitEvent), handle,
                   [&](Driver& driver, Stream& stream) -> CUresult {
                     const Event* event = driver.streams.find(event_handle);
                     if (event == nullptr) return bad_handle("event");
                     if ((flags & ~CU_EVENT_WAIT_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
                     driver.streams.tick_wait(&stream, *event);
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
    *id = stream.id;
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
    *result = reinterpret_cast<CUevent>(driver.streams.events.add(event));
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy(CUevent handle) {
  return on_event(CALL(cuEventDestroy), handle, [&](Driver& driver, Event&) {
    driver.streams.events.remove(reinterpret_cast<uint64_t>(handle));
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
  return on_event(CALL(cuEventQuery), handle, [&](Driver& driver, Event& event) {
    return driver.streams.tick_complete(event, &driver.contexts) ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return on_event(CALL(cuEventSynchronize), handle, [&](Driver& driver, Event& event) {
    Stream* stream = driver.streams.streams.find(event.stream);
    if (stream != nullptr) driver.streams.tick_synchronize(stream, event.seq);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize() {
  return in_context(CALL(cuCtxSynchronize), 0, [&](Driver& driver, Context& context) {
    driver.streams.tick_synchronize(&context);
    return CUDA_SUCCESS;
  });
}
