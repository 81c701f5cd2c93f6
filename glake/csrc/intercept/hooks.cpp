// The intercepted functions. Each calls the driver's own, and does what must happen around it.
#include "intercept/hooks.h"

#include <cstring>

#include "intercept/carrier.h"
#include "intercept/judge.h"
#include "intercept/resolve.h"

namespace glake::intercept {
namespace {

template <class F>
F own(Name name, F) {
  return reinterpret_cast<F>(real(name));
}

CUdeviceptr at(const void* host) { return reinterpret_cast<CUdeviceptr>(host); }

Copy asked(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream, bool waits) {
  Copy copy;
  copy.dst = dst;
  copy.src = src;
  copy.bytes = bytes;
  copy.stream = stream;
  copy.waits = waits;
  return copy;
}

// Carries the copy, or makes the driver's copy.
template <class F, class... Arguments>
CUresult copied(const Copy& copy, F driver, Arguments... arguments) {
  if (driver == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (Carrier::inside()) return driver(arguments...);
  Carrier& carrier = Carrier::instance();
  if (carrier.sticky() != CUDA_SUCCESS) return carrier.sticky();
  CUresult result = CUDA_SUCCESS;
  const Reason reason = carrier.carry(copy, &result);
  if (reason == kNone) return result;
  carrier.left(reason, copy.bytes);
  result = driver(arguments...);
  // A copy that waits has waited for all work before it in the legacy stream.
  return copy.waits && result == CUDA_SUCCESS
             ? carrier.waited(Carrier::Wait::kNone, nullptr, carrier.latest())
             : result;
}

template <class F, class... Arguments>
CUresult waited(Carrier::Wait which, CUstream stream, F driver, Arguments... arguments) {
  if (driver == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (Carrier::inside()) return driver(arguments...);
  Carrier& carrier = Carrier::instance();
  if (carrier.sticky() != CUDA_SUCCESS) return carrier.sticky();
  const uint64_t latest = carrier.latest();
  const CUresult result = driver(arguments...);
  return result == CUDA_SUCCESS ? carrier.waited(which, stream, latest) : result;
}

template <class F, class... Arguments>
CUresult gated(F driver, Arguments... arguments) {
  if (driver == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (Carrier::inside()) return driver(arguments...);
  Carrier& carrier = Carrier::instance();
  carrier.shut();
  CUresult result = carrier.sticky();
  if (result == CUDA_SUCCESS) result = driver(arguments...);
  carrier.reopen();
  return result;
}

}  // namespace

#define OWN(symbol) own(Name::k_##symbol, &hook_##symbol)

CUresult hook_cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t bytes,
                                   CUstream stream) {
  return copied(asked(dst, at(src), bytes, stream, false), OWN(cuMemcpyHtoDAsync_v2), dst, src,
                bytes, stream);
}

CUresult hook_cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return copied(asked(at(dst), src, bytes, stream, false), OWN(cuMemcpyDtoHAsync_v2), dst, src,
                bytes, stream);
}

CUresult hook_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return copied(asked(dst, src, bytes, stream, false), OWN(cuMemcpyAsync), dst, src, bytes, stream);
}

CUresult hook_cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t bytes) {
  return copied(asked(dst, at(src), bytes, nullptr, true), OWN(cuMemcpyHtoD_v2), dst, src, bytes);
}

CUresult hook_cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t bytes) {
  return copied(asked(at(dst), src, bytes, nullptr, true), OWN(cuMemcpyDtoH_v2), dst, src, bytes);
}

CUresult hook_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  return copied(asked(dst, src, bytes, nullptr, true), OWN(cuMemcpy), dst, src, bytes);
}

CUresult hook_cuStreamSynchronize(CUstream stream) {
  return waited(Carrier::Wait::kStream, stream, OWN(cuStreamSynchronize), stream);
}

CUresult hook_cuStreamQuery(CUstream stream) {
  return waited(Carrier::Wait::kStream, stream, OWN(cuStreamQuery), stream);
}

CUresult hook_cuEventSynchronize(CUevent event) {
  return waited(Carrier::Wait::kNone, nullptr, OWN(cuEventSynchronize), event);
}

CUresult hook_cuEventQuery(CUevent event) {
  return waited(Carrier::Wait::kNone, nullptr, OWN(cuEventQuery), event);
}

CUresult hook_cuCtxSynchronize() {
  return waited(Carrier::Wait::kContext, nullptr, OWN(cuCtxSynchronize));
}

CUresult hook_cuMemFree_v2(CUdeviceptr base) { return gated(OWN(cuMemFree_v2), base); }
CUresult hook_cuMemFreeHost(void* base) { return gated(OWN(cuMemFreeHost), base); }
CUresult hook_cuMemHostUnregister(void* base) { return gated(OWN(cuMemHostUnregister), base); }
CUresult hook_cuMemHostAlloc(void** base, size_t bytes, unsigned flags) {
  return gated(OWN(cuMemHostAlloc), base, bytes, flags);
}
CUresult hook_cuMemAllocHost_v2(void** base, size_t bytes) {
  return gated(OWN(cuMemAllocHost_v2), base, bytes);
}
CUresult hook_cuMemHostRegister_v2(void* base, size_t bytes, unsigned flags) {
  return gated(OWN(cuMemHostRegister_v2), base, bytes, flags);
}
CUresult hook_cuMemUnmap(CUdeviceptr base, size_t bytes) {
  return gated(OWN(cuMemUnmap), base, bytes);
}
CUresult hook_cuIpcCloseMemHandle(CUdeviceptr base) {
  const CUresult result = gated(OWN(cuIpcCloseMemHandle), base);
  if (result == CUDA_SUCCESS) note_ipc(base, false);
  return result;
}
CUresult hook_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return gated(OWN(cuCtxEnablePeerAccess), peer, flags);
}
CUresult hook_cuCtxDisablePeerAccess(CUcontext peer) {
  return gated(OWN(cuCtxDisablePeerAccess), peer);
}
CUresult hook_cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  return gated(OWN(cuCtxCreate_v2), context, flags, device);
}
CUresult hook_cuCtxDestroy_v2(CUcontext context) { return gated(OWN(cuCtxDestroy_v2), context); }
CUresult hook_cuModuleLoad(CUmodule* module, const char* path) {
  return gated(OWN(cuModuleLoad), module, path);
}
CUresult hook_cuModuleLoadData(CUmodule* module, const void* image) {
  return gated(OWN(cuModuleLoadData), module, image);
}
CUresult hook_cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, void* options,
                                 void** values) {
  return gated(OWN(cuModuleLoadDataEx), module, image, count, options, values);
}
CUresult hook_cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return gated(OWN(cuModuleLoadFatBinary), module, image);
}
CUresult hook_cuModuleUnload(CUmodule module) { return gated(OWN(cuModuleUnload), module); }
CUresult hook_cuLibraryLoadData(void** library, const void* code, void* jit, void** jit_values,
                                unsigned jit_count, void* options, void** values, unsigned count) {
  return gated(OWN(cuLibraryLoadData), library, code, jit, jit_values, jit_count, options, values,
               count);
}
CUresult hook_cuLibraryLoadFromFile(void** library, const char* path, void* jit, void** jit_values,
                                    unsigned jit_count, void* options, void** values,
                                    unsigned count) {
  return gated(OWN(cuLibraryLoadFromFile), library, path, jit, jit_values, jit_count, options,
               values, count);
}
// The first use of a library in a context may load its code there.
CUresult hook_cuLibraryGetModule(CUmodule* module, void* library) {
  return gated(OWN(cuLibraryGetModule), module, library);
}
CUresult hook_cuKernelGetFunction(CUfunction* function, void* kernel) {
  return gated(OWN(cuKernelGetFunction), function, kernel);
}
CUresult hook_cuLibraryUnload(void* library) { return gated(OWN(cuLibraryUnload), library); }

CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr* base, CUipcMemHandle handle, unsigned flags) {
  const auto driver = OWN(cuIpcOpenMemHandle_v2);
  if (driver == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = driver(base, handle, flags);
  if (result == CUDA_SUCCESS && !Carrier::inside()) note_ipc(*base, true);
  return result;
}

CUresult hook_cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const auto driver = OWN(cuDevicePrimaryCtxRetain);
  if (driver == nullptr) return CUDA_ERROR_NOT_FOUND;
  const CUresult result = driver(context, device);
  if (result == CUDA_SUCCESS && !Carrier::inside()) Carrier::instance().retained(device);
  return result;
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  const auto driver = OWN(cuDevicePrimaryCtxRelease_v2);
  if (driver == nullptr) return CUDA_ERROR_NOT_FOUND;
  return Carrier::inside() ? driver(device) : Carrier::instance().released(device, driver);
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
  const auto driver = OWN(cuDevicePrimaryCtxReset_v2);
  if (driver == nullptr) return CUDA_ERROR_NOT_FOUND;
  return Carrier::inside() ? driver(device) : Carrier::instance().reset(device, driver);
}

}  // namespace glake::intercept

// For glake's own Python (glake/transfer/intercepted.py).
#define INTERCEPT_EXPORT extern "C" __attribute__((visibility("default")))

// Ends the engine that carried copies. Later copies go over one that the program opens.
INTERCEPT_EXPORT void glake_intercept_yield(void) { glake::intercept::Carrier::instance().yield(); }

INTERCEPT_EXPORT void glake_intercept_wait(void) {
  glake::intercept::Carrier::instance().wait_all();
}

INTERCEPT_EXPORT void glake_intercept_await(void) {
  glake::intercept::Carrier::instance().await_open();
}

// Returns as JSON what was carried and left so far. It uses the buffer as snprintf does.
INTERCEPT_EXPORT size_t glake_intercept_report(char* json, size_t capacity) {
  const std::string text = glake::intercept::Carrier::instance().json();
  if (capacity != 0) {
    const size_t length = text.size() < capacity ? text.size() : capacity - 1;
    std::memcpy(json, text.data(), length);
    json[length] = '\0';
  }
  return text.size();
}
