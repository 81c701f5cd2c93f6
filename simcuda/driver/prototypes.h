// Exported functions whose declarations in cuda.h differ between toolkits. simcuda exports the same
// set with every header.
#pragma once

#include "types.h"

#if CUDA_VERSION < 12030
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
#endif

SIMCUDA_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device);
SIMCUDA_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device);
SIMCUDA_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);
SIMCUDA_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end);
SIMCUDA_EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end);
SIMCUDA_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status,
                                                  cuuint64_t* id, CUgraph* graph,
                                                  const CUgraphNode** dependencies, size_t* count);
SIMCUDA_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status,
                                                  cuuint64_t* id, CUgraph* graph,
                                                  const CUgraphNode** dependencies,
                                                  const CUgraphEdgeData** edges, size_t* count);
SIMCUDA_EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* dependencies,
                                                      CUgraphEdgeData* edges, size_t* count);
SIMCUDA_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream,
                                                             CUgraphNode* dependencies,
                                                             const CUgraphEdgeData* edges,
                                                             size_t count, unsigned int flags);
SIMCUDA_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                               CUmemAllocationType type);
SIMCUDA_EXPORT CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                        CUmemAllocationType type);
SIMCUDA_EXPORT CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type,
                                        CUmemoryPool pool);
#if CUDA_VERSION < 12080
typedef int CUmemcpySrcAccessOrder;
enum {
  CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
  CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2,
  CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3
};
typedef struct {
  CUmemcpySrcAccessOrder srcAccessOrder;
  CUmemLocation srcLocHint, dstLocHint;
  unsigned int flags;
} CUmemcpyAttributes;
#endif
SIMCUDA_EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes,
                                           size_t count, CUmemcpyAttributes* attrs,
                                           size_t* attrs_idxs, size_t num_attrs, size_t* fail_idx,
                                           CUstream stream);
SIMCUDA_EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes,
                                              size_t count, CUmemcpyAttributes* attrs,
                                              size_t* attrs_idxs, size_t num_attrs,
                                              CUstream stream);
SIMCUDA_EXPORT CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel);
SIMCUDA_EXPORT CUresult cuKernelGetName(const char** name, CUkernel kernel);
SIMCUDA_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version,
                                         cuuint64_t flags);
SIMCUDA_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                            cuuint64_t flags,
                                            CUdriverProcAddressQueryResult* status);
