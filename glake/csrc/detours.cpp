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

}  // namespace glake
