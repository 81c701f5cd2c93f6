// Devices: count, order, peers, limits, and waiting for one.
#include <algorithm>

#include "cudart.h"
#include "simcuda/driver/runtime.h"

using namespace cudart;  // NOLINT: this file is nothing but C face

CUDART(cudaGetDeviceCount)(int* devices) {
  if (devices == nullptr) return told(kInvalidValue);
  *devices = 0;
  const Error started = start();
  return told(started != kSuccess ? started : driver().cuDeviceGetCount(devices));
}

CUDART(cudaDeviceSynchronize)() {
  CUDART_READY();
  return told(driver().cuCtxSynchronize());
}

// vLLM looks it up. It would end the context under PyTorch's memory, so it is refused.
CUDART(cudaDeviceReset)() {
  CUDART_READY();
  return told(CUDA_ERROR_NOT_SUPPORTED);
}

CUDART(cudaInitDevice)(int device, unsigned, unsigned) {
  const Error started = start();
  if (started != kSuccess) return told(started);
  CUcontext context = nullptr;
  return told(primary_context(device, &context));
}

CUDART(cudaDriverGetVersion)(int* version) { return told(driver().cuDriverGetVersion(version)); }

CUDART(cudaRuntimeGetVersion)(int* version) {
  if (version == nullptr) return told(kInvalidValue);
  *version = CUDART_MAJOR >= 13 ? 13000 : 12080;
  return kSuccess;
}

CUDART(cudaDeviceGetPCIBusId)(char* text, int length, int device) {
  const Error started = start();
  return told(started != kSuccess ? started : driver().cuDeviceGetPCIBusId(text, length, device));
}

CUDART(cudaDeviceGetByPCIBusId)(int* device, const char* text) {
  const Error started = start();
  return told(started != kSuccess ? started : driver().cuDeviceGetByPCIBusId(device, text));
}

CUDART(cudaDeviceGetStreamPriorityRange)(int* least, int* greatest) {
  CUDART_READY();
  return told(driver().cuCtxGetStreamPriorityRange(least, greatest));
}

CUDART(cudaDeviceGetLimit)(size_t* value, int limit) {
  CUDART_READY();
  return told(driver().cuCtxGetLimit(value, static_cast<CUlimit>(limit)));
}

CUDART(cudaDeviceSetLimit)(int limit, size_t value) {
  CUDART_READY();
  return told(driver().cuCtxSetLimit(static_cast<CUlimit>(limit), value));
}

CUDART(cudaDeviceCanAccessPeer)(int* can, int device, int peer) {
  const Error started = start();
  return told(started != kSuccess ? started : driver().cuDeviceCanAccessPeer(can, device, peer));
}

CUDART(cudaDeviceGetP2PAttribute)(int* value, int which, int from, int to) {
  const Error started = start();
  if (started != kSuccess) return told(started);
  return told(
      driver().cuDeviceGetP2PAttribute(value, static_cast<CUdevice_P2PAttribute>(which), from, to));
}

CUDART(cudaDeviceEnablePeerAccess)(int peer, unsigned flags) {
  CUDART_READY();
  CUcontext context = nullptr;
  const CUresult result = primary_context(peer, &context);
  return told(result != CUDA_SUCCESS ? result : driver().cuCtxEnablePeerAccess(context, flags));
}

CUDART(cudaDeviceDisablePeerAccess)(int peer) {
  CUDART_READY();
  CUcontext context = nullptr;
  const CUresult result = primary_context(peer, &context);
  return told(result != CUDA_SUCCESS ? result : driver().cuCtxDisablePeerAccess(context));
}

CUDART(cudaGetDeviceFlags)(unsigned* flags) {
  CUDART_READY();
  return told(driver().cuCtxGetFlags(flags));
}

CUDART(cudaSetDeviceFlags)(unsigned flags) {
  const Error started = start();
  return told(started != kSuccess ? started
                                  : driver().cuDevicePrimaryCtxSetFlags(current_device(), flags));
}

// The profiler is not told, because nobody profiles a simulated device.
CUDART(cudaProfilerStart)() { return kSuccess; }
CUDART(cudaProfilerStop)() { return kSuccess; }

namespace {

enum EntryPoint : int { kFound, kNotFound, kTooOld };

Error entry_point(const char* symbol, void** function, unsigned version, unsigned long long flags,
                  int* status) {
  if (symbol == nullptr || function == nullptr) return told(kInvalidValue);
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  *function = nullptr;
  const CUresult result =
      driver().cuGetProcAddress(symbol, function, static_cast<int>(version), flags, &found);
  if (status != nullptr) *status = static_cast<int>(found);
  return told(result);
}

}  // namespace

CUDART(cudaGetDriverEntryPointByVersion)
(const char* symbol, void** function, unsigned version, unsigned long long flags, int* status) {
  return entry_point(symbol, function, version, flags, status);
}

#if CUDART_MAJOR < 13
CUDART(cudaGetDriverEntryPoint)
(const char* symbol, void** function, unsigned long long flags, int* status) {
  return entry_point(symbol, function, 12080, flags, status);
}
#endif
