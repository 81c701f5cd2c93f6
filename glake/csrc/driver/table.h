// The one table of CUDA driver functions. Each entry has the name, the symbol that a library
// without cuGetProcAddress exports, the CUDA version whose signature is compiled here, and whether
// it is required.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

// cuda.h renames some functions to their newest version by macro (cuMemFree -> cuMemFree_v2). The
// pointers below have the type that the header declares. The symbols are written out in strings.
#define GLAKE_DRIVER_FUNCTIONS(X)                                                        \
  X(cuInit, "cuInit", 2000, true)                                                        \
  X(cuDriverGetVersion, "cuDriverGetVersion", 2020, true)                                \
  X(cuGetErrorName, "cuGetErrorName", 6000, true)                                        \
  X(cuGetErrorString, "cuGetErrorString", 6000, true)                                    \
  X(cuDeviceGet, "cuDeviceGet", 2000, true)                                              \
  X(cuDeviceGetCount, "cuDeviceGetCount", 2000, true)                                    \
  X(cuDeviceGetName, "cuDeviceGetName", 2000, true)                                      \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000, true)                            \
  X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", 3020, true)                                 \
  X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000, true)                          \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, true)                    \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 11000, true)              \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, true)                                      \
  X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000, false)               \
  X(cuCtxGetDevice, "cuCtxGetDevice", 2000, false)                                       \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", 4000, true)                                 \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", 4000, true)                                   \
  X(cuCtxSynchronize, "cuCtxSynchronize", 2000, true)                                    \
  X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020, true)         \
  X(cuMemAddressReserve, "cuMemAddressReserve", 10020, true)                             \
  X(cuMemAddressFree, "cuMemAddressFree", 10020, true)                                   \
  X(cuMemCreate, "cuMemCreate", 10020, true)                                             \
  X(cuMemRelease, "cuMemRelease", 10020, true)                                           \
  X(cuMemMap, "cuMemMap", 10020, true)                                                   \
  X(cuMemUnmap, "cuMemUnmap", 10020, true)                                               \
  X(cuMemGetInfo, "cuMemGetInfo_v2", 3020, true)                                         \
  X(cuMemSetAccess, "cuMemSetAccess", 10020, true)                                       \
  X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020, false)          \
  X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, false)      \
  X(cuDeviceGetUuid, "cuDeviceGetUuid_v2", 11040, false)                                 \
  X(cuMemAlloc, "cuMemAlloc_v2", 3020, false)                                            \
  X(cuMemFree, "cuMemFree_v2", 3020, false)                                              \
  X(cuMemHostAlloc, "cuMemHostAlloc", 2020, false)                                       \
  X(cuMemFreeHost, "cuMemFreeHost", 2000, false)                                         \
  X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, false)                                 \
  X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2", 11000, false)                           \
  X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, false)                             \
  X(cuMemsetD8Async, "cuMemsetD8Async", 3020, true)                                      \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", 3020, true)                               \
  X(cuEventCreate, "cuEventCreate", 2000, true)                                          \
  X(cuEventDestroy, "cuEventDestroy_v2", 4000, true)                                     \
  X(cuEventRecord, "cuEventRecord", 2000, true)                                          \
  X(cuEventQuery, "cuEventQuery", 2000, true)                                            \
  X(cuEventSynchronize, "cuEventSynchronize", 2000, true)                                \
  X(cuEventElapsedTime, "cuEventElapsedTime", 2000, false)                               \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020, true)                                  \
  X(cuStreamGetId, "cuStreamGetId", 12000, false)                                        \
  X(cuStreamGetCtx, "cuStreamGetCtx", 9020, false)                                       \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000, true)                             \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, true) \
  X(cuStreamCreate, "cuStreamCreate", 2000, false)                                       \
  X(cuStreamDestroy, "cuStreamDestroy_v2", 4000, false)                                  \
  X(cuStreamQuery, "cuStreamQuery", 2000, false)                                         \
  X(cuStreamSynchronize, "cuStreamSynchronize", 2000, false)                             \
  X(cuStreamWriteValue32, "cuStreamWriteValue32_v2", 11070, false)                       \
  X(cuStreamWaitValue32, "cuStreamWaitValue32_v2", 11070, false)                         \
  X(cuLaunchHostFunc, "cuLaunchHostFunc", 10000, false)                                  \
  X(cuMemcpyAsync, "cuMemcpyAsync", 4000, false)                                         \
  X(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", 4000, false)                                 \
  X(cuMemcpy2DAsync, "cuMemcpy2DAsync_v2", 3020, false)                                  \
  X(cuMemcpy3DPeerAsync, "cuMemcpy3DPeerAsync", 4000, false)                             \
  X(cuMemHostRegister, "cuMemHostRegister_v2", 6050, false)                              \
  X(cuMemHostUnregister, "cuMemHostUnregister", 4000, false)                             \
  X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", 3020, false)              \
  X(cuPointerGetAttributes, "cuPointerGetAttributes", 7000, false)                       \
  X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, false)                         \
  X(cuModuleLoadData, "cuModuleLoadData", 2000, false)                                   \
  X(cuModuleUnload, "cuModuleUnload", 2000, false)                                       \
  X(cuModuleGetFunction, "cuModuleGetFunction", 2000, false)                             \
  X(cuLaunchKernel, "cuLaunchKernel", 4000, false)

namespace glake::driver {

// CUmemcpyAttributes, which headers before CUDA 12.8 lack.
struct BatchAttributes {
  int source_order;
  CUmemLocation source, destination;
  unsigned flags;
};
// cuMemcpyBatchAsync as CUDA 12.8 has it. It is written out because CUDA 13.0 changed what the name
// means in the header. Drivers from 13.0 on still give this function to callers that ask for the
// one of 12.8.
using CopyBatch = CUresult (*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, BatchAttributes*,
                               size_t*, size_t, size_t*, CUstream);
constexpr int kCopyBatchVersion = 12080;

// The functions that a driver with virtual time exports beside CUDA's. With other drivers they are
// nullptr.
struct Extras {
  uint64_t (*now_ns)() = nullptr;
  int (*thread)(int join, int rank) = nullptr;
  int (*expect)(int threads) = nullptr;
  int (*aside)(int away) = nullptr;
  int (*wait_event)(CUevent event, uint64_t timeout_ns) = nullptr;
  int (*wait_any)(CUevent const* events, size_t count, uint64_t timeout_ns) = nullptr;
  int (*polled)() = nullptr;  // whether waits poll, as with other drivers
  int (*sleep)(uint64_t ns) = nullptr;
  int (*host_node)(const void* address, size_t bytes, int* node) = nullptr;
  int (*place_host)(const void* address, size_t bytes, int node) = nullptr;
};

struct Table {
#define GLAKE_FIELD(name, symbol, version, required) decltype(&::name) name = nullptr;
  GLAKE_DRIVER_FUNCTIONS(GLAKE_FIELD)
#undef GLAKE_FIELD
  CopyBatch copy_batch = nullptr;
  Extras extras;
};

}  // namespace glake::driver
