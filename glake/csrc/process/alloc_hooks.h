// Allocations and frees as callers ask for them. The plain ones are the hot path. The others are
// for a process that records, watches or checks what it allocates.
#pragma once

#include <functional>

#include "process/process.h"

namespace glake {

inline void* plain_malloc(Process& process, Bytes bytes, int device, StreamHandle stream) {
  ThreadCache& cache = process.cache(device);
  return cache.device()->allocate(bytes, stream, cache)->data();
}

inline void plain_free(Process& process, void* ptr) {
  Block& b = process.block(ptr, true);
  ThreadCache& cache = process.cache(b.heap->number);
  b.heap->free(&b, cache);
}

// Allocates from the contiguous pool. `asked.kind` is GLAKE_CONTIGUOUS_*.
void* contiguous_malloc(Process& process, Bytes bytes, int device, StreamHandle stream,
                        const Asked& asked);

// These allocate from a private pool. pool_malloc_at() does so at exactly `ptr`.
void* pool_malloc(Process& process, Bytes bytes, int device, StreamHandle stream, PoolId pool);
void* pool_malloc_at(Process& process, void* ptr, Bytes bytes, int device, StreamHandle stream,
                     PoolId pool);

// Returns a private pool to a checkpoint, and reports that to those who watch.
RestoreLog pool_restore(Process& process, int device, PoolId pool, const Checkpoint& then);

// Runs `trim`, which gives memory back to the driver. The events meanwhile carry the caller's
// context.
void watched_trim(const std::function<void()>& trim);

// The same as the plain calls, for a process in which an AllocHook is set.
void* hooked_malloc(Process& process, Bytes bytes, int device, StreamHandle stream);
void hooked_free(Process& process, void* ptr);

// Allocates by the function `allocate`. If `guards` is true and the option `debug` wants guards,
// `allocate` is asked for room for them beside `bytes`.
using Allocate = std::function<Block*(ThreadCache& cache, Bytes bytes, Bytes guards)>;
void* hooked_malloc(Process& process, Bytes bytes, int device, StreamHandle stream, glake_pool pool,
                    bool guards, const Allocate& allocate);

}  // namespace glake
