// Stream-ordered allocation (cudaMallocAsync). simcuda's graphs have no memory nodes. So in a
// capture these calls return cudaErrorNotSupported, and the memory of graphs is always 0 bytes.
#include "cudart.h"

using namespace cudart;  // NOLINT: this file is nothing but C face

CUDART(cudaMallocAsync)(void** pointer, size_t bytes, CUstream stream) {
  CUDART_READY();
  return OPTIONAL(cuMemAllocAsync, reinterpret_cast<CUdeviceptr*>(pointer), bytes, stream);
}

CUDART(cudaMallocFromPoolAsync)
(void** pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
  CUDART_READY();
  return OPTIONAL(cuMemAllocFromPoolAsync, reinterpret_cast<CUdeviceptr*>(pointer), bytes, pool,
                  stream);
}

CUDART(cudaFreeAsync)(void* pointer, CUstream stream) {
  CUDART_READY();
  return OPTIONAL(cuMemFreeAsync, address(pointer), stream);
}

CUDART(cudaDeviceGetDefaultMemPool)(CUmemoryPool* pool, int device) {
  CUDART_READY();
  return OPTIONAL(cuDeviceGetDefaultMemPool, pool, device);
}

CUDART(cudaDeviceGetMemPool)(CUmemoryPool* pool, int device) {
  CUDART_READY();
  return OPTIONAL(cuDeviceGetMemPool, pool, device);
}

CUDART(cudaDeviceSetMemPool)(int device, CUmemoryPool pool) {
  CUDART_READY();
  return OPTIONAL(cuDeviceSetMemPool, device, pool);
}

CUDART(cudaMemPoolCreate)(CUmemoryPool* pool, const void* properties) {
  CUDART_READY();
  return OPTIONAL(cuMemPoolCreate, pool, properties);
}

CUDART(cudaMemPoolDestroy)(CUmemoryPool pool) {
  CUDART_READY();
  return OPTIONAL(cuMemPoolDestroy, pool);
}

CUDART(cudaMemPoolGetAttribute)(CUmemoryPool pool, int which, void* value) {
  CUDART_READY();
  return OPTIONAL(cuMemPoolGetAttribute, pool, which, value);
}

CUDART(cudaMemPoolSetAttribute)(CUmemoryPool pool, int which, void* value) {
  CUDART_READY();
  return OPTIONAL(cuMemPoolSetAttribute, pool, which, value);
}

CUDART(cudaMemPoolSetAccess)(CUmemoryPool pool, const CUmemAccessDesc* grants, size_t count) {
  CUDART_READY();
  return OPTIONAL(cuMemPoolSetAccess, pool, grants, count);
}

CUDART(cudaMemPoolTrimTo)(CUmemoryPool pool, size_t bytes) {
  CUDART_READY();
  return OPTIONAL(cuMemPoolTrimTo, pool, bytes);
}

CUDART(cudaDeviceGetGraphMemAttribute)(int device, int which, void* value) {
  CUDART_READY();
  return OPTIONAL(cuDeviceGetGraphMemAttribute, device, which, value);
}

CUDART(cudaDeviceSetGraphMemAttribute)(int device, int which, void* value) {
  CUDART_READY();
  return OPTIONAL(cuDeviceSetGraphMemAttribute, device, which, value);
}

CUDART(cudaDeviceGraphMemTrim)(int device) {
  CUDART_READY();
  return OPTIONAL(cuDeviceGraphMemTrim, device);
}
