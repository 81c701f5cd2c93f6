// The driver's functions that the runtime needs. It links no driver. Like NVIDIA's runtime it opens
// libcuda.so.1, asks that for cuGetProcAddress, and cuGetProcAddress for all others.
#pragma once

#include <cuda.h>

// The name, cuGetProcAddress's name, and the CUDA version whose signature the headers declare.
#define CUDART_DRIVER_CALLS(X)                                        \
  X(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000)           \
  X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000)             \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000)                         \
  X(cuCtxGetFlags, "cuCtxGetFlags", 7000)                             \
  X(cuCtxGetLimit, "cuCtxGetLimit", 3010)                             \
  X(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", 5050) \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000)                         \
  X(cuCtxSetLimit, "cuCtxSetLimit", 3010)                             \
  X(cuCtxSynchronize, "cuCtxSynchronize", 2000)                       \
  X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000)             \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000)               \
  X(cuDeviceGetByPCIBusId, "cuDeviceGetByPCIBusId", 4010)             \
  X(cuDeviceGetCount, "cuDeviceGetCount", 2000)                       \
  X(cuDeviceGetName, "cuDeviceGetName", 2000)                         \
  X(cuDeviceGetP2PAttribute, "cuDeviceGetP2PAttribute", 8000)         \
  X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", 4010)                 \
  X(cuDeviceGetUuid, "cuDeviceGetUuid", 11040)                        \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000)       \
  X(cuDevicePrimaryCtxSetFlags, "cuDevicePrimaryCtxSetFlags", 11000)  \
  X(cuDeviceTotalMem, "cuDeviceTotalMem", 3020)                       \
  X(cuDriverGetVersion, "cuDriverGetVersion", 2020)                   \
  X(cuEventCreate, "cuEventCreate", 2000)                             \
  X(cuEventDestroy, "cuEventDestroy", 4000)                           \
  X(cuEventElapsedTime, "cuEventElapsedTime", 2000)                   \
  X(cuEventQuery, "cuEventQuery", 2000)                               \
  X(cuEventRecord, "cuEventRecord", 2000)                             \
  X(cuEventRecordWithFlags, "cuEventRecordWithFlags", 11010)          \
  X(cuEventSynchronize, "cuEventSynchronize", 2000)                   \
  X(cuGetProcAddress, "cuGetProcAddress", 12000)                      \
  X(cuGraphDestroy, "cuGraphDestroy", 10000)                          \
  X(cuInit, "cuInit", 2000)                                           \
  X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010)                 \
  X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010)                     \
  X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 11000)                  \
  X(cuLaunchHostFunc, "cuLaunchHostFunc", 10000)                      \
  X(cuMemAlloc, "cuMemAlloc", 3020)                                   \
  X(cuMemAllocHost, "cuMemAllocHost", 3020)                           \
  X(cuMemFree, "cuMemFree", 3020)                                     \
  X(cuMemFreeHost, "cuMemFreeHost", 2000)                             \
  X(cuMemGetInfo, "cuMemGetInfo", 3020)                               \
  X(cuMemHostAlloc, "cuMemHostAlloc", 2020)                           \
  X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer", 3020)     \
  X(cuMemHostGetFlags, "cuMemHostGetFlags", 2030)                     \
  X(cuMemHostRegister, "cuMemHostRegister", 6050)                     \
  X(cuMemHostUnregister, "cuMemHostUnregister", 4000)                 \
  X(cuMemcpy, "cuMemcpy", 4000)                                       \
  X(cuMemcpy2D, "cuMemcpy2D", 3020)                                   \
  X(cuMemcpy2DAsync, "cuMemcpy2DAsync", 3020)                         \
  X(cuMemcpyAsync, "cuMemcpyAsync", 4000)                             \
  X(cuMemcpyDtoD, "cuMemcpyDtoD", 3020)                               \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync", 3020)                     \
  X(cuMemcpyDtoH, "cuMemcpyDtoH", 3020)                               \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync", 3020)                     \
  X(cuMemcpyHtoD, "cuMemcpyHtoD", 3020)                               \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync", 3020)                     \
  X(cuMemcpyPeer, "cuMemcpyPeer", 4000)                               \
  X(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", 4000)                     \
  X(cuMemsetD8, "cuMemsetD8", 3020)                                   \
  X(cuMemsetD8Async, "cuMemsetD8Async", 3020)                         \
  X(cuPointerGetAttributes, "cuPointerGetAttributes", 7000)           \
  X(cuStreamBeginCapture, "cuStreamBeginCapture", 10010)              \
  X(cuStreamCreate, "cuStreamCreate", 2000)                           \
  X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050)   \
  X(cuStreamDestroy, "cuStreamDestroy", 4000)                         \
  X(cuStreamEndCapture, "cuStreamEndCapture", 10000)                  \
  X(cuStreamGetFlags, "cuStreamGetFlags", 5050)                       \
  X(cuStreamGetId, "cuStreamGetId", 12000)                            \
  X(cuStreamGetPriority, "cuStreamGetPriority", 5050)                 \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000)                \
  X(cuStreamQuery, "cuStreamQuery", 2000)                             \
  X(cuStreamSynchronize, "cuStreamSynchronize", 2000)                 \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020)                     \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010)

namespace cudart {

struct DriverCalls {
#define X(name, text, version) decltype(&::name) name = nullptr;
  CUDART_DRIVER_CALLS(X)
#undef X
  // cuStreamGetCaptureInfo of CUDA 11.3 to 12.2: cuda.h of CUDA 13 names only its own version.
  CUresult (*capture_info)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                           const CUgraphNode**, size_t*) = nullptr;
};

// Looked up once. If the driver lacks one of them, this ends the process and says which.
const DriverCalls& driver();

}  // namespace cudart
