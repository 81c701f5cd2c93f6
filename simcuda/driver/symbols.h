// Every driver call of simcuda: its base name, its exported symbol, the CUDA version in which it
// appeared, and its published costs. The costs are microseconds: first of a call, then of each
// further 2 MiB page in it. A page of a further mapping costs as much. The cost file may replace
// them (costs.h). Zero means "not modelled". Where they come from (this project measured only those
// of the last point):
//
// - Calls on virtual memory: vAttention's and GMLake's published tables. The costs of further pages
//   are assumed.
// - Asynchronous copies 2.6, and event queries 0.7: published for an A10. Peer, 2D and batched
//   copies, host functions, launches, stream queries, and a wait beyond the time waited: assumed to
//   be like those.
// - A value written or waited for 1, and each further copy of a batch 0.2 (there, "page" means
//   copy): assumed.
// - A graph's launch 2.5, and each further node 0.2 ("page" means node there): the higher of the
//   costs that NVIDIA published before and after CUDA 12.6 (blog, Constant Time Launch for
//   Straight-Line CUDA Graphs).
// - cuMemAlloc and cuMemFree: the gaps between events of jobs recorded on GPUs, which include some
//   of PyTorch's own time. The medians of cuMemAlloc are 100 at 2 MiB and 311 at 528 MiB, those of
//   cuMemFree 84 to 104. Managed memory: assumed to be like cuMemAlloc.
// - Pinning and cuMemGetInfo: measured on an H100, the dearer of two GPUs. cuMemHostAlloc of 32 MiB
//   took 24,000, and cuMemHostRegister 5,200
//   (benchmarks/gpu/results/2026-11-27-NVIDIA-H100-80GB-HBM3-1.json, "driver lock"). It is assumed
//   that every page takes equally long.
#pragma once

#define SIMCUDA_CALLS(X)                                                                         \
  X(cuInit, cuInit, 2000, 0, 0)                                                                  \
  X(cuDriverGetVersion, cuDriverGetVersion, 2020, 0, 0)                                          \
  X(cuGetErrorName, cuGetErrorName, 6000, 0, 0)                                                  \
  X(cuGetErrorString, cuGetErrorString, 6000, 0, 0)                                              \
  X(cuGetProcAddress, cuGetProcAddress_v2, 12000, 0, 0)                                          \
  X(cuDeviceGet, cuDeviceGet, 2000, 0, 0)                                                        \
  X(cuDeviceGetCount, cuDeviceGetCount, 2000, 0, 0)                                              \
  X(cuDeviceGetName, cuDeviceGetName, 2000, 0, 0)                                                \
  X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, 0, 0)                                            \
  X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, 0, 0)                                           \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, 0, 0)                                      \
  X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, 0, 0)                                        \
  X(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, 4010, 0, 0)                                    \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, 0, 0)                              \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, 0, 0)                        \
  X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, 0, 0)                            \
  X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, 0, 0)                          \
  X(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, 11000, 0, 0)                      \
  X(cuCtxCreate, cuCtxCreate_v2, 3020, 0, 0)                                                     \
  X(cuCtxDestroy, cuCtxDestroy_v2, 4000, 0, 0)                                                   \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, 0, 0)                                           \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, 0, 0)                                             \
  X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, 0, 0)                                                \
  X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, 0, 0)                                                \
  X(cuCtxGetDevice, cuCtxGetDevice, 2000, 0, 0)                                                  \
  X(cuCtxGetFlags, cuCtxGetFlags, 7000, 0, 0)                                                    \
  X(cuCtxGetId, cuCtxGetId, 12000, 0, 0)                                                         \
  X(cuCtxGetApiVersion, cuCtxGetApiVersion, 3020, 0, 0)                                          \
  X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, 0, 0)                        \
  X(cuCtxSetLimit, cuCtxSetLimit, 3010, 0, 0)                                                    \
  X(cuCtxGetLimit, cuCtxGetLimit, 3010, 0, 0)                                                    \
  X(cuCtxSynchronize, cuCtxSynchronize, 2000, 0, 0)                                              \
  X(cuMemGetInfo, cuMemGetInfo_v2, 3020, 1100, 0)                                                \
  X(cuMemAddressReserve, cuMemAddressReserve, 10020, 2, 0)                                       \
  X(cuMemAddressFree, cuMemAddressFree, 10020, 0, 0)                                             \
  X(cuMemCreate, cuMemCreate, 10020, 29, 1.2)                                                    \
  X(cuMemRelease, cuMemRelease, 10020, 23, 1)                                                    \
  X(cuMemMap, cuMemMap, 10020, 2, 0)                                                             \
  X(cuMemUnmap, cuMemUnmap, 10020, 34, 1)                                                        \
  X(cuMemSetAccess, cuMemSetAccess, 10020, 38, 2)                                                \
  X(cuMemGetAccess, cuMemGetAccess, 10020, 0, 0)                                                 \
  X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, 0, 0)                   \
  X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, 0, 0) \
  X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, 0, 0)                       \
  X(cuStreamCreate, cuStreamCreate, 2000, 0, 0)                                                  \
  X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, 0, 0)                          \
  X(cuStreamDestroy, cuStreamDestroy_v2, 4000, 0, 0)                                             \
  X(cuStreamQuery, cuStreamQuery, 2000, 0.7, 0)                                                  \
  X(cuStreamSynchronize, cuStreamSynchronize, 2000, 0.7, 0)                                      \
  X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, 1, 0)                                            \
  X(cuStreamGetPriority, cuStreamGetPriority, 5050, 0, 0)                                        \
  X(cuStreamGetFlags, cuStreamGetFlags, 5050, 0, 0)                                              \
  X(cuStreamGetCtx, cuStreamGetCtx, 9020, 0, 0)                                                  \
  X(cuStreamGetId, cuStreamGetId, 12000, 0, 0)                                                   \
  X(cuEventCreate, cuEventCreate, 2000, 0, 0)                                                    \
  X(cuEventDestroy, cuEventDestroy_v2, 4000, 0, 0)                                               \
  X(cuEventRecord, cuEventRecord, 2000, 1, 0)                                                    \
  X(cuEventRecordWithFlags, cuEventRecordWithFlags, 11010, 1, 0)                                 \
  X(cuEventQuery, cuEventQuery, 2000, 0.7, 0)                                                    \
  X(cuEventSynchronize, cuEventSynchronize, 2000, 0.7, 0)                                        \
  X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, 0, 0)                                    \
  X(cuDeviceGetP2PAttribute, cuDeviceGetP2PAttribute, 8000, 0, 0)                                \
  X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, 0, 0)                                    \
  X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, 0, 0)                                  \
  X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, 0, 0)                     \
  X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, 0, 0)                 \
  X(cuMemAlloc, cuMemAlloc_v2, 3020, 100, 0.8)                                                   \
  X(cuMemFree, cuMemFree_v2, 3020, 84, 0)                                                        \
  X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, 0, 0)                                   \
  X(cuMemHostAlloc, cuMemHostAlloc, 2020, 1500, 1500)                                            \
  X(cuMemAllocManaged, cuMemAllocManaged, 6000, 100, 0.8)                                        \
  X(cuMemAllocHost, cuMemAllocHost_v2, 3020, 1500, 1500)                                         \
  X(cuMemFreeHost, cuMemFreeHost, 2000, 0, 0)                                                    \
  X(cuMemHostRegister, cuMemHostRegister_v2, 6050, 320, 320)                                     \
  X(cuMemHostUnregister, cuMemHostUnregister, 4000, 0, 0)                                        \
  X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, 0, 0)                         \
  X(cuMemHostGetFlags, cuMemHostGetFlags, 2030, 0, 0)                                            \
  X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, 0, 0)                                            \
  X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000, 0, 0)                                      \
  X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, 0, 0)                                        \
  X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, 0, 0)                                    \
  X(cuPointerGetAttributes, cuPointerGetAttributes, 7000, 0, 0)                                  \
  X(cuMemcpy, cuMemcpy, 4000, 0, 0)                                                              \
  X(cuMemcpyAsync, cuMemcpyAsync, 4000, 2.6, 0)                                                  \
  X(cuMemcpyPeer, cuMemcpyPeer, 4000, 0, 0)                                                      \
  X(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000, 2.6, 0)                                          \
  X(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020, 0, 0)                                                   \
  X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020, 0, 0)                                                   \
  X(cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020, 0, 0)                                                   \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020, 2.6, 0)                                       \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020, 2.6, 0)                                       \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, 2.6, 0)                                       \
  X(cuMemcpy2D, cuMemcpy2D_v2, 3020, 0, 0)                                                       \
  X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, 3020, 2.6, 0)                                           \
  X(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync, 4000, 2.6, 0)                                      \
  X(cuMemcpyBatchAsync, cuMemcpyBatchAsync, 12080, 2.6, 0.2)                                     \
  X(cuMemsetD8, cuMemsetD8_v2, 3020, 0, 0)                                                       \
  X(cuMemsetD16, cuMemsetD16_v2, 3020, 0, 0)                                                     \
  X(cuMemsetD32, cuMemsetD32_v2, 3020, 0, 0)                                                     \
  X(cuMemsetD8Async, cuMemsetD8Async, 3020, 0, 0)                                                \
  X(cuMemsetD16Async, cuMemsetD16Async, 3020, 0, 0)                                              \
  X(cuMemsetD32Async, cuMemsetD32Async, 3020, 0, 0)                                              \
  X(cuLaunchHostFunc, cuLaunchHostFunc, 10000, 2.6, 0)                                           \
  X(cuStreamWriteValue32, cuStreamWriteValue32_v2, 11070, 1, 0)                                  \
  X(cuStreamWriteValue64, cuStreamWriteValue64_v2, 11070, 1, 0)                                  \
  X(cuStreamWaitValue32, cuStreamWaitValue32_v2, 11070, 1, 0)                                    \
  X(cuStreamWaitValue64, cuStreamWaitValue64_v2, 11070, 1, 0)                                    \
  X(cuEventElapsedTime, cuEventElapsedTime, 2000, 0, 0)                                          \
  X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, 0, 0)                                  \
  X(cuStreamEndCapture, cuStreamEndCapture, 10000, 0, 0)                                         \
  X(cuStreamIsCapturing, cuStreamIsCapturing, 10000, 0, 0)                                       \
  X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2, 11030, 0, 0)                              \
  X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, 0, 0)           \
  X(cuGraphDestroy, cuGraphDestroy, 10000, 0, 0)                                                 \
  X(cuGraphGetNodes, cuGraphGetNodes, 10000, 0, 0)                                               \
  X(cuGraphGetRootNodes, cuGraphGetRootNodes, 10000, 0, 0)                                       \
  X(cuGraphNodeGetType, cuGraphNodeGetType, 10000, 0, 0)                                         \
  X(cuGraphNodeGetDependencies, cuGraphNodeGetDependencies_v2, 12030, 0, 0)                      \
  X(cuGraphAddEmptyNode, cuGraphAddEmptyNode, 10000, 0, 0)                                       \
  X(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_v2, 12030, 0, 0)        \
  X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, 0, 0)                       \
  X(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000, 0, 0)                     \
  X(cuGraphUpload, cuGraphUpload, 11010, 0, 0)                                                   \
  X(cuGraphLaunch, cuGraphLaunch, 10000, 2.5, 0.2)                                               \
  X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, 0, 0)                                         \
  X(cuGraphDebugDotPrint, cuGraphDebugDotPrint, 11030, 0, 0)                                     \
  X(cuUserObjectCreate, cuUserObjectCreate, 11030, 0, 0)                                         \
  X(cuUserObjectRetain, cuUserObjectRetain, 11030, 0, 0)                                         \
  X(cuUserObjectRelease, cuUserObjectRelease, 11030, 0, 0)                                       \
  X(cuGraphRetainUserObject, cuGraphRetainUserObject, 11030, 0, 0)                               \
  X(cuGraphReleaseUserObject, cuGraphReleaseUserObject, 11030, 0, 0)                             \
  X(cuMemAllocAsync, cuMemAllocAsync, 11020, 2.6, 0.8)                                           \
  X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, 2.6, 0.8)                           \
  X(cuMemFreeAsync, cuMemFreeAsync, 11020, 2.6, 0)                                               \
  X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, 0, 0)                           \
  X(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020, 0, 0)                                         \
  X(cuDeviceSetMemPool, cuDeviceSetMemPool, 11020, 0, 0)                                         \
  X(cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, 13000, 0, 0)                                 \
  X(cuMemGetMemPool, cuMemGetMemPool, 13000, 0, 0)                                               \
  X(cuMemSetMemPool, cuMemSetMemPool, 13000, 0, 0)                                               \
  X(cuMemPoolCreate, cuMemPoolCreate, 11020, 0, 0)                                               \
  X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, 0, 0)                                             \
  X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, 0, 0)                                               \
  X(cuDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute, 11040, 0, 0)                     \
  X(cuDeviceSetGraphMemAttribute, cuDeviceSetGraphMemAttribute, 11040, 0, 0)                     \
  X(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, 0, 0)                                     \
  X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, 0, 0)                                   \
  X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, 0, 0)                                   \
  X(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020, 0, 0)                                         \
  X(cuMemPoolGetAccess, cuMemPoolGetAccess, 11020, 0, 0)                                         \
  X(cuModuleLoadData, cuModuleLoadData, 2000, 0, 0)                                              \
  X(cuModuleLoad, cuModuleLoad, 2000, 0, 0)                                                      \
  X(cuModuleLoadFatBinary, cuModuleLoadFatBinary, 2000, 0, 0)                                    \
  X(cuModuleGetFunction, cuModuleGetFunction, 2000, 0, 0)                                        \
  X(cuModuleUnload, cuModuleUnload, 2000, 0, 0)                                                  \
  X(cuLaunchKernel, cuLaunchKernel, 4000, 2.6, 0)                                                \
  X(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, 0, 0)                                          \
  X(cuLaunchKernelEx, cuLaunchKernelEx, 11060, 2.6, 0)                                           \
  X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, 2.6, 0)                          \
  X(cuLinkCreate, cuLinkCreate_v2, 6050, 0, 0)                                                   \
  X(cuLinkAddData, cuLinkAddData_v2, 6050, 0, 0)                                                 \
  X(cuLinkAddFile, cuLinkAddFile_v2, 6050, 0, 0)                                                 \
  X(cuLinkComplete, cuLinkComplete, 5050, 0, 0)                                                  \
  X(cuLinkDestroy, cuLinkDestroy, 5050, 0, 0)                                                    \
  X(cuLibraryLoadData, cuLibraryLoadData, 12000, 0, 0)                                           \
  X(cuLibraryLoadFromFile, cuLibraryLoadFromFile, 12000, 0, 0)                                   \
  X(cuLibraryUnload, cuLibraryUnload, 12000, 0, 0)                                               \
  X(cuLibraryGetKernel, cuLibraryGetKernel, 12000, 0, 0)                                         \
  X(cuLibraryGetModule, cuLibraryGetModule, 12000, 0, 0)                                         \
  X(cuKernelGetFunction, cuKernelGetFunction, 12000, 0, 0)                                       \
  X(cuKernelGetLibrary, cuKernelGetLibrary, 12050, 0, 0)                                         \
  X(cuKernelGetName, cuKernelGetName, 12030, 0, 0)                                               \
  X(cuKernelGetAttribute, cuKernelGetAttribute, 12000, 0, 0)                                     \
  X(cuKernelSetAttribute, cuKernelSetAttribute, 12000, 0, 0)                                     \
  X(cuKernelSetCacheConfig, cuKernelSetCacheConfig, 12000, 0, 0)                                 \
  X(cuFuncGetAttribute, cuFuncGetAttribute, 2020, 0, 0)                                          \
  X(cuFuncSetAttribute, cuFuncSetAttribute, 9000, 0, 0)                                          \
  X(cuFuncSetCacheConfig, cuFuncSetCacheConfig, 3000, 0, 0)                                      \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor,    \
    6050, 0, 0)

namespace simcuda {

enum class Symbol : unsigned {
#define X(base, exported, since, first, further) k_##base,
  SIMCUDA_CALLS(X)
#undef X
      kCount
};
constexpr unsigned kSymbols = static_cast<unsigned>(Symbol::kCount);

}  // namespace simcuda
