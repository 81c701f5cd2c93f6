#include "detours.h"

namespace glake {

void* detoured_malloc(Process& process, Bytes bytes, int device, StreamHandle stream) {
  ThreadCache& cache = process.cache(device);  // reads the options, at the first use
  int kind = process.detoured(kKinds) ? process.kind_of(bytes) : GLAKE_STITCHED;
  DeviceAllocator& allocator = *cache.device();
  Block* b = kind == GLAKE_STITCHED ? allocator.allocate(bytes, stream, cache)
                                    : allocator.allocate_contiguous(bytes, stream, kind);
  void* ptr = reinterpret_cast<void*>(b->ptr);
  if (process.detoured(kTraced)) process.trace().allocated(ptr, bytes, stream);
  return ptr;
}

void detoured_free(Process& process, void* ptr) {
  Block& b = process.block(ptr, true);
  if (process.detoured(kTraced)) process.trace().freed(ptr);
  ThreadCache& cache = process.cache(b.device->device());
  b.device->free(&b, cache);
}

void* pool_malloc(Process& process, Bytes bytes, int device, StreamHandle stream, PoolId pool) {
  Block* b = process.device(device).allocate_from(pool, bytes, stream);
  auto* ptr = reinterpret_cast<void*>(b->ptr);
  if (process.detoured(kTraced)) process.trace().allocated(ptr, bytes, stream);
  return ptr;
}

void* pool_malloc_at(Process& process, void* ptr, Bytes bytes, int device, StreamHandle stream,
                     PoolId pool) {
  auto at = reinterpret_cast<Address>(ptr);
  process.device(device).allocate_at(pool, at, bytes, stream);
  if (process.detoured(kTraced)) process.trace().allocated(ptr, bytes, stream);
  return ptr;
}

}  // namespace glake
