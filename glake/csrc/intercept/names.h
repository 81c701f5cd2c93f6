// The driver functions that are intercepted. Each has its symbol, the name that cuGetProcAddress
// knows it by, the CUDA version whose signature is compiled here, and what it takes.
#pragma once

#include <cuda.h>

#include <cstddef>

// clang-format off
// Copies that may be carried.
#define INTERCEPT_COPIES(X)                                                                       \
  X(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020, (CUdeviceptr, const void*, size_t, CUstream)) \
  X(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 3020, (void*, CUdeviceptr, size_t, CUstream))       \
  X(cuMemcpyAsync, "cuMemcpyAsync", 4000, (CUdeviceptr, CUdeviceptr, size_t, CUstream))            \
  X(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020, (CUdeviceptr, const void*, size_t))                     \
  X(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, (void*, CUdeviceptr, size_t))                           \
  X(cuMemcpy, "cuMemcpy", 4000, (CUdeviceptr, CUdeviceptr, size_t))

// Calls by which a program learns that work has failed.
#define INTERCEPT_WAITS(X)                                                                        \
  X(cuStreamSynchronize, "cuStreamSynchronize", 2000, (CUstream))                                  \
  X(cuStreamQuery, "cuStreamQuery", 2000, (CUstream))                                              \
  X(cuEventSynchronize, "cuEventSynchronize", 2000, (CUevent))                                     \
  X(cuEventQuery, "cuEventQuery", 2000, (CUevent))                                                 \
  X(cuCtxSynchronize, "cuCtxSynchronize", 2000, ())

// Calls that wait for work in flight while they hold the driver's lock, and calls that take memory
// or a context away. Carried copies need the driver to go on, so they are waited for first.
#define INTERCEPT_GATES(X)                                                                        \
  X(cuMemFree_v2, "cuMemFree", 3020, (CUdeviceptr))                                                \
  X(cuMemFreeHost, "cuMemFreeHost", 2000, (void*))                                                 \
  X(cuMemHostUnregister, "cuMemHostUnregister", 4000, (void*))                                     \
  X(cuMemHostAlloc, "cuMemHostAlloc", 2020, (void**, size_t, unsigned))                            \
  X(cuMemAllocHost_v2, "cuMemAllocHost", 3020, (void**, size_t))                                   \
  X(cuMemHostRegister_v2, "cuMemHostRegister", 6050, (void*, size_t, unsigned))                    \
  X(cuMemUnmap, "cuMemUnmap", 10020, (CUdeviceptr, size_t))                                        \
  X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, (CUdeviceptr))                               \
  X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, (CUcontext, unsigned))                   \
  X(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000, (CUcontext))                           \
  X(cuCtxCreate_v2, "cuCtxCreate", 3020, (CUcontext*, unsigned, CUdevice))                         \
  X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, (CUcontext))                                            \
  X(cuModuleLoad, "cuModuleLoad", 2000, (CUmodule*, const char*))                                  \
  X(cuModuleLoadData, "cuModuleLoadData", 2000, (CUmodule*, const void*))                          \
  X(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010, (CUmodule*, const void*, unsigned, void*, void**)) \
  X(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000, (CUmodule*, const void*))                \
  X(cuModuleUnload, "cuModuleUnload", 2000, (CUmodule))                                            \
  X(cuLibraryLoadData, "cuLibraryLoadData", 12000, (void**, const void*, void*, void**, unsigned, void*, void**, unsigned)) \
  X(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000, (void**, const char*, void*, void**, unsigned, void*, void**, unsigned)) \
  X(cuLibraryGetModule, "cuLibraryGetModule", 12000, (CUmodule*, void*))                           \
  X(cuKernelGetFunction, "cuKernelGetFunction", 12000, (CUfunction*, void*))                       \
  X(cuLibraryUnload, "cuLibraryUnload", 12000, (void*))

// Functions with a body of their own in hooks.cpp.
#define INTERCEPT_OTHERS(X)                                                                       \
  X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, (CUdeviceptr*, CUipcMemHandle, unsigned))  \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, (CUcontext*, CUdevice))            \
  X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, (CUdevice))                  \
  X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, (CUdevice))                      \
  X(cuGetProcAddress, "cuGetProcAddress", 11030, (const char*, void**, int, cuuint64_t))           \
  X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, (const char*, void**, int, cuuint64_t, void*))
// clang-format on

#define INTERCEPT_ALL(X) \
  INTERCEPT_COPIES(X) INTERCEPT_WAITS(X) INTERCEPT_GATES(X) INTERCEPT_OTHERS(X)

namespace glake::intercept {

enum class Name {
#define X(symbol, base, version, takes) k_##symbol,
  INTERCEPT_ALL(X)
#undef X
      kCount
};

}  // namespace glake::intercept
