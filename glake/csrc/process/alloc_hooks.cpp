#include "process/alloc_hooks.h"

#include "debug/debug_device.h"
#include "watch/watch.h"

namespace glake {

namespace {

// Reports to those who watch that memory ran out, and adds to the text who holds most.
[[noreturn]] void refuse(DeviceAllocator& device, Bytes bytes, StreamHandle stream, glake_pool pool,
                         const Error& error) {
  Watch::event(GLAKE_OOM, device.number(), device.driver_free_bytes(), bytes, stream, pool);
  throw Error(error.code(), error.what() + Watch::instance().top_holders(device.number()));
}

Block* allocate_or_refuse(ThreadCache& cache, Bytes bytes, Bytes guards, StreamHandle stream,
                          glake_pool pool, const Allocate& allocate) {
  DeviceAllocator& device = *cache.device();
  const bool debug = debug_of(device) != nullptr;
  try {
    return allocate(cache, bytes, guards);
  } catch (const Error& e) {
    if (e.code() != GLAKE_OUT_OF_MEMORY) throw;
    bool more = debug && debug_of(device)->release_kept();
    if (!more) refuse(device, bytes, stream, pool, e);
    device.forgive_refusal();
  }
  try {
    return allocate(cache, bytes, guards);
  } catch (const Error& e) {
    if (e.code() != GLAKE_OUT_OF_MEMORY) throw;
    refuse(device, bytes, stream, pool, e);
  }
}

DebugDevice* debug_of(Process& process, void* ptr) {
  BlockTable* table =
      process.hooks().has(kDebug) ? PointerMap::find(reinterpret_cast<Address>(ptr)) : nullptr;
  return table != nullptr ? debug_of(*table->heap()) : nullptr;
}

[[noreturn]] void refuse_pointer(DebugDevice& debug, void* ptr, const Error& error) {
  std::string why = debug.explain(reinterpret_cast<Address>(ptr));
  if (why.empty()) throw error;
  throw Error(error.code(), hex(ptr) + why);
}

Block& taken(Process& process, DebugDevice* debug, const HoldingPtr& holding, void* ptr) {
  if (holding != nullptr) return process.block(reinterpret_cast<void*>(holding->begin), true);
  try {
    if (debug != nullptr) debug->refuse_guard(reinterpret_cast<Address>(ptr));
    return process.block(ptr, true);
  } catch (const Error& e) {
    if (debug == nullptr || e.code() != GLAKE_INVALID_POINTER) throw;
    refuse_pointer(*debug, ptr, e);
  }
}

}  // namespace

void* hooked_malloc(Process& process, Bytes bytes, int device, StreamHandle stream, glake_pool pool,
                    bool guards, const Allocate& allocate) {
  process.check_usable();
  if (process.hooks().has(kUnread)) process.prepare();
  void* ptr = nullptr;
  {
    Watch::Operation op(GLAKE_CONTEXT_STATE);
    ThreadCache& cache = process.cache(device);
    DebugDevice* debug =
        guards && process.hooks().has(kDebug) ? debug_of(*cache.device()) : nullptr;
    Bytes overhead = debug != nullptr ? debug->overhead() : 0;
    Block* b = allocate_or_refuse(cache, bytes, overhead, stream, pool, allocate);
    ptr = b->data();
    if (process.hooks().has(kWatched) || process.hooks().has(kDebug)) {
      Watch::instance().allocated(device, b->ptr, bytes, stream, pool, op);
    }
    if (debug != nullptr) ptr = debug->allocated(b, bytes, Watch::tag(), op.context());
    if (process.hooks().has(kTraced)) process.trace().allocated(ptr, bytes, stream, Watch::tag());
  }
  drop_unused_contexts();
  return ptr;
}

void* hooked_malloc(Process& process, Bytes bytes, int device, StreamHandle stream) {
  process.check_usable();
  if (process.hooks().has(kUnread)) process.prepare();
  Asked asked;
  const PoolId pool = process.hooks().has(kKinds) ? ThreadKinds::pool_of_thread() : PoolId{};
  if (process.hooks().has(kKinds)) asked.kind = process.kinds().kind_of(bytes, &asked.by_size);
  if (pool != PoolId{}) {
    if (asked.kind == GLAKE_STITCHED || asked.by_size) {
      return pool_malloc(process, bytes, device, stream, pool);
    }
    throw Error(GLAKE_REGION_REFUSED, "a contiguous block cannot be of " +
                                          RegionBook::instance().text(pool) +
                                          ": allocate it outside, as it cannot be paused");
  }
  if (asked.kind != GLAKE_STITCHED) return contiguous_malloc(process, bytes, device, stream, asked);
  return hooked_malloc(process, bytes, device, stream, {0, 0}, true,
                       [stream](ThreadCache& cache, Bytes size, Bytes added) {
                         return cache.device()->allocate(size, stream, cache, added);
                       });
}

void hooked_free(Process& process, void* ptr) {
  process.check_usable();
  if (process.hooks().has(kCopied)) process.transfer().refuse_copied(ptr);
  {
    DebugDevice* debug = debug_of(process, ptr);
    HoldingPtr holding = debug != nullptr ? debug->take(reinterpret_cast<Address>(ptr)) : nullptr;
    Watch::Operation op(GLAKE_CONTEXT_ALL);
    Block& b = taken(process, debug, holding, ptr);
    if (process.hooks().has(kTraced)) process.trace().freed(ptr);
    ThreadCache& cache = process.cache(b.heap->number);
    if (process.hooks().has(kWatched) || process.hooks().has(kDebug)) {
      Bytes bytes = holding != nullptr ? holding->requested : b.requested;
      bool held = holding == nullptr && Heap::frees_later(b);
      PoolId pool = b.heap->pool_id();
      Watch::instance().freed(b.heap->number, b.ptr, bytes, b.stream, {pool.first, pool.second}, op,
                              held);
    }
    if (holding != nullptr) {
      debug->free(&b, holding, op.context(), cache);
    } else {
      b.heap->free(&b, cache);
    }
  }
  drop_unused_contexts();
}

void watched_trim(const std::function<void()>& trim) {
  {
    Watch::Operation op(GLAKE_CONTEXT_ALL);
    trim();
  }
  drop_unused_contexts();
}

void* contiguous_malloc(Process& process, Bytes bytes, int device, StreamHandle stream,
                        const Asked& asked) {
  // The block has no guards, because its caller needs a pointer to the first byte of the driver's
  // allocation.
  return hooked_malloc(process, bytes, device, stream, {0, 0}, false,
                       [stream, asked](ThreadCache& cache, Bytes size, Bytes) {
                         return cache.device()->contiguous().allocate(size, stream, asked);
                       });
}

void* pool_malloc(Process& process, Bytes bytes, int device, StreamHandle stream, PoolId pool) {
  auto allocate = [stream, pool](ThreadCache& cache, Bytes size, Bytes) {
    return cache.device()->pools().allocate(pool, size, stream);
  };
  if (process.hooks().any()) {
    return hooked_malloc(process, bytes, device, stream, {pool.first, pool.second}, false,
                         allocate);
  }
  return allocate(process.cache(device), bytes, 0)->data();
}

void* pool_malloc_at(Process& process, void* ptr, Bytes bytes, int device, StreamHandle stream,
                     PoolId pool) {
  auto at = reinterpret_cast<Address>(ptr);
  return hooked_malloc(process, bytes, device, stream, {pool.first, pool.second}, false,
                       [stream, pool, at](ThreadCache& cache, Bytes size, Bytes) {
                         return cache.device()->pools().allocate_at(pool, at, size, stream);
                       });
}

RestoreLog pool_restore(Process& process, int device, PoolId pool, const Checkpoint& then) {
  DeviceAllocator& own = process.device(device);
  if (!process.hooks().any()) return own.pools().restore(pool, then);
  RestoreLog log;
  {
    Watch::Operation op(GLAKE_CONTEXT_STATE);
    log = own.pools().restore(pool, then);
    bool watched = process.hooks().has(kWatched) || process.hooks().has(kDebug);
    bool traced = process.hooks().has(kTraced);
    glake_pool id{pool.first, pool.second};
    Watch& watch = Watch::instance();
    for (const SavedBlock& b : log.freed) {
      if (traced) process.trace().freed(reinterpret_cast<void*>(b.ptr));
      if (watched) watch.freed(device, b.ptr, b.requested, b.stream, id, op, false);
    }
    for (const SavedBlock& b : log.allocated) {
      if (watched) watch.allocated(device, b.ptr, b.requested, b.stream, id, op);
      if (traced) {
        process.trace().allocated(reinterpret_cast<void*>(b.ptr), b.requested, b.stream,
                                  Watch::tag());
      }
    }
  }
  drop_unused_contexts();
  return log;
}

}  // namespace glake
