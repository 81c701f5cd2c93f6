// Primary and created contexts, and the calling thread's current one.
#include "driver.h"
#include "prototypes.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

template <class Body>
CUresult on_primary(Symbol symbol, CUdevice device, Body&& body) {
  return locked(symbol, 0, [&](Driver& driver) -> CUresult {
    if (device < 0 || device >= driver.devices) {
      return fail(CUDA_ERROR_INVALID_DEVICE, "no such device");
    }
    return body(driver, *driver.contexts.primary(device));
  });
}

// Waits for all work before the context's memory is freed, as cuMemFree does. May release the lock.
void await_uses(Driver* driver, Lock* lock, const Context& context) {
  if (driver->memory.owned_by(context.id).empty() && driver->host.owned_by(context.id).empty()) {
    return;
  }
  driver->scheduler->waits().wait_device(lock, -1);
}

// Ends what a context owns: its captures, streams, events, modules, and memory of cuMemAlloc,
// cuMemAllocManaged and cuMemAllocHost. Their handles are dead.
void end_owned(Driver* driver, const Context& context) {
  driver->captures.abandon(context.id);
  for (const uint64_t stream : driver->streams.forget(context.id)) {
    driver->scheduler->forget(stream);
  }
  driver->kernels.forget(context.id);
  driver->libraries.forget(context.id);
  for (const CUdeviceptr block : driver->memory.owned_by(context.id)) driver->blocks.free(block);
  for (void* block : driver->host.owned_by(context.id)) driver->host.free(block);
}

// The context ends, and is inactive.
void end_primary(Driver* driver, Context* context) {
  driver->contexts.changed();
  context->peers = 0;
  end_owned(driver, *context);
  driver->contexts.give_memory(context);
  driver->scheduler->lost().recover(context->device);
}

// For a call that makes or ends the context when it has `refs` references.
template <class Body>
CUresult at_refs(Symbol symbol, CUdevice device, uint32_t refs, Body&& body) {
  return call(symbol, 0, [&](Driver& driver) -> CUresult {
    if (device < 0 || device >= driver.devices) {
      return fail(CUDA_ERROR_INVALID_DEVICE, "no such device");
    }
    Lock lock(driver.mutex);
    const bool alone = driver.contexts.primary(device)->refs == refs;
    const DriverLock::Turn turn(&driver.calls, &lock, symbol, {},
                                alone ? LockSide::kWaitsAndExcludes : LockSide::kNone);
    return body(driver, &lock, *driver.contexts.primary(device));
  });
}

}  // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice device) {
  return at_refs(CALL(cuDevicePrimaryCtxRetain), device, 0,
                 [&](Driver& driver, Lock*, Context& context) -> CUresult {
                   if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   const CUresult taken = driver.contexts.take_memory(&context);
                   if (taken != CUDA_SUCCESS) return taken;
                   ++context.refs;
                   context.reset = false;
                   driver.contexts.changed();
                   *result = as_context(context.id);
                   return CUDA_SUCCESS;
                 });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return at_refs(CALL(cuDevicePrimaryCtxRelease), device, 1,
                 [&](Driver& driver, Lock* lock, const Context& before) -> CUresult {
                   if (before.refs == 1) await_uses(&driver, lock, before);
                   Context& context = *driver.contexts.primary(device);
                   if (context.refs == 0) return bad_context();
                   if (--context.refs == 0) {
                     end_primary(&driver, &context);
                     context.reset = false;
                   }
                   return CUDA_SUCCESS;
                 });
}

// Ends what the context owns, and leaves its references: "Resetting the primary context does not
// release it". A thread whose current context was reset gets CUDA_ERROR_CONTEXT_IS_DESTROYED.
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return call(CALL(cuDevicePrimaryCtxReset), 0, [&](Driver& driver) -> CUresult {
    if (device < 0 || device >= driver.devices) {
      return fail(CUDA_ERROR_INVALID_DEVICE, "no such device");
    }
    Lock lock(driver.mutex);
    const DriverLock::Turn turn(&driver.calls, &lock, CALL(cuDevicePrimaryCtxReset), {},
                                LockSide::kWaitsAndExcludes);
    if (!driver.contexts.primary(device)->active()) return CUDA_SUCCESS;
    await_uses(&driver, &lock, *driver.contexts.primary(device));
    Context* context = driver.contexts.primary(device);
    if (!context->active()) return CUDA_SUCCESS;
    end_primary(&driver, context);
    context->reset = true;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  return on_primary(CALL(cuDevicePrimaryCtxGetState), device,
                    [&](Driver&, Context& context) -> CUresult {
                      if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
                      *flags = context.flags;
                      *active = context.active();
                      return CUDA_SUCCESS;
                    });
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
  return on_primary(CALL(cuDevicePrimaryCtxSetFlags), device, [&](Driver&, Context& context) {
    context.flags = flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxCreate_v2(CUcontext* result, unsigned int flags, CUdevice device) {
  return on_primary(CALL(cuCtxCreate), device, [&](Driver& driver, Context&) -> CUresult {
    if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t id = driver.contexts.create(device, flags);
    const CUresult taken = driver.contexts.take_memory(driver.contexts.find(id));
    if (taken != CUDA_SUCCESS) {
      driver.contexts.destroy(id);
      return taken;
    }
    driver.contexts.push(id);
    *result = as_context(id);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxDestroy(CUcontext handle) {
  return call(CALL(cuCtxDestroy), 0, [&](Driver& driver) -> CUresult {
    Lock lock(driver.mutex);
    const DriverLock::Turn turn(&driver.calls, &lock, CALL(cuCtxDestroy), {});
    const Context* before = driver.contexts.live(handle);
    if (before == nullptr || before->primary) return bad_context();
    await_uses(&driver, &lock, *before);
    Context* context = driver.contexts.live(handle);
    if (context == nullptr) return bad_context();
    if (driver.contexts.current() == context) driver.contexts.pop();
    end_owned(&driver, *context);
    driver.contexts.give_memory(context);
    driver.contexts.destroy(context->id);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPushCurrent(CUcontext handle) {
  return locked(CALL(cuCtxPushCurrent), 0, [&](Driver& driver) -> CUresult {
    Context* context = driver.contexts.live(handle);
    if (context == nullptr) return bad_context();
    driver.contexts.push(context->id);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPopCurrent(CUcontext* result) {
  return locked(CALL(cuCtxPopCurrent), 0, [&](Driver& driver) -> CUresult {
    const uint64_t id = driver.contexts.pop();
    if (id == 0) return no_context();
    if (result != nullptr) *result = as_context(id);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  return locked(CALL(cuCtxSetCurrent), 0, [&](Driver& driver) -> CUresult {
    if (handle != nullptr && driver.contexts.live(handle) == nullptr) return bad_context();
    driver.contexts.set(reinterpret_cast<uint64_t>(handle));
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* result) {
  return locked(CALL(cuCtxGetCurrent), 0, [&](Driver& driver) -> CUresult {
    if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Context* context = driver.contexts.current();
    *result = context == nullptr ? nullptr : as_context(context->id);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return in_context(CALL(cuCtxGetDevice), 0, [&](Driver&, Context& context) -> CUresult {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context.device;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  return in_context(CALL(cuCtxGetFlags), 0, [&](Driver&, Context& context) -> CUresult {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = context.flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return locked(CALL(cuCtxGetId), 0, [&](Driver& driver) -> CUresult {
    const Context* context =
        handle == nullptr ? driver.contexts.current() : driver.contexts.live(handle);
    if (context == nullptr) return bad_context();
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  return locked(CALL(cuCtxGetApiVersion), 0, [&](Driver& driver) -> CUresult {
    const Context* context =
        handle == nullptr ? driver.contexts.current() : driver.contexts.live(handle);
    if (context == nullptr) return bad_context();
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return in_context(CALL(cuCtxGetStreamPriorityRange), 0, [&](Driver&, Context&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return CUDA_SUCCESS;
  });
}

// Nothing that runs here is bounded by a limit. Limits are stored, and read as they were set. A
// limit that nobody set reads as on a GPU after its start: a stack of 1 KiB, 1 MiB for printf, 8
// MiB for malloc.
CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  return in_context(CALL(cuCtxSetLimit), 0, [&](Driver&, Context& context) -> CUresult {
    if (limit < 0 || limit >= CU_LIMIT_MAX) {
      return fail(CUDA_ERROR_UNSUPPORTED_LIMIT, "cuCtxSetLimit: " + std::to_string(limit));
    }
    context.limits[limit] = value;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  return in_context(CALL(cuCtxGetLimit), 0, [&](Driver&, Context& context) -> CUresult {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (limit < 0 || limit >= CU_LIMIT_MAX) {
      return fail(CUDA_ERROR_UNSUPPORTED_LIMIT, "cuCtxGetLimit: " + std::to_string(limit));
    }
    const auto set = context.limits.find(limit);
    *value = set != context.limits.end()          ? set->second
             : limit == CU_LIMIT_STACK_SIZE       ? 1024
             : limit == CU_LIMIT_PRINTF_FIFO_SIZE ? size_t{1} << 20
             : limit == CU_LIMIT_MALLOC_HEAP_SIZE ? size_t{8} << 20
                                                  : 0;
    return CUDA_SUCCESS;
  });
}
