// An allocation and a free as callers ask for them: the plain ones, which are the hot path, and
// those of a process that records, watches or checks what it allocates.
#pragma once

#include "core/process.h"

namespace glake {

inline void* plain_malloc(Process& process, Bytes bytes, int device, StreamHandle stream) {
  ThreadCache& cache = process.cache(device);
  return reinterpret_cast<void*>(cache.device()->allocate(bytes, stream, cache)->ptr);
}

inline void plain_free(Process& process, void* ptr) {
  Block& b = process.block(ptr, true);
  ThreadCache& cache = process.cache(b.device->device());
  b.device->free(&b, cache);
}

// From a private pool; the second, at exactly `ptr`.
void* pool_malloc(Process& process, Bytes bytes, int device, StreamHandle stream, PoolId pool);
void* pool_malloc_at(Process& process, void* ptr, Bytes bytes, int device, StreamHandle stream,
                     PoolId pool);

// The same for a process of which detoured() is true.
void* detoured_malloc(Process& process, Bytes bytes, int device, StreamHandle stream);
void detoured_free(Process& process, void* ptr);

}  // namespace glake
