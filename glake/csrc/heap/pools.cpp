#include "heap/pools.h"

#include <algorithm>

#include "heap/checkpoints.h"
#include "heap/frees.h"
#include "heap/mapping_turn.h"
#include "heap/neighbours.h"
#include "heap/pause.h"
#include "heap/reclaim.h"
#include "heap/search.h"
#include "heap/slow_path.h"
#include "heap/trim.h"
#include "memory/fair_mutex.h"

namespace glake {

namespace {

std::string name_of(PoolId id) { return RegionBook::instance().text(id); }

}  // namespace

Heap* Pools::find(PoolId id) { return device_.heaps.find(id); }

Heap& Pools::need(PoolId id) {
  Heap* pool = find(id);
  if (pool != nullptr) return *pool;
  throw Error(GLAKE_INVALID_ARGUMENT,
              device_text(device_.number) + " has no " + name_of(id) +
                  "; an allocation from it, or glake_pool_retain(), makes it");
}

// The pool's heap. A pool without one gets the heap of a pool that has ended, or a new one.
Heap& Pools::open(PoolId id) {
  if (id == PoolId{}) {
    throw Error(GLAKE_INVALID_ARGUMENT, "pool {0, 0} is the device's own memory, no private pool");
  }
  Heap& heap = device_.heaps.open(id);
  heap.pool->region = RegionBook::instance().find(id);
  return heap;
}

void Pools::start(Heap& pool, HotGuard& hot) {
  if (pool.started) return;
  hot.unlock();
  pool.reserve();
  hot.lock();
  pool.started = true;
}

void Pools::retain(PoolId id) {
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  HotGuard hot(device_.hot);
  Heap& heap = open(id);
  Pool& pool = *heap.pool;
  if (pool.users == 0 && pool.blocks.empty()) {  // it had ended
    heap.rule.set_flags(0);
    Frees(heap).drain_whole();
  }
  ++pool.users;
}

void Pools::release(PoolId id) {
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  HotGuard hot(device_.hot);
  Heap& heap = need(id);
  Pool& pool = *heap.pool;
  if (pool.users == 0) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                name_of(id) + " has no user: released more often than retained");
  }
  if (--pool.users == 0) heap.rule.note_use();
  end_unused();
}

int Pools::users(PoolId id) {
  HotGuard hot(device_.hot);
  Heap* pool = find(id);
  return pool != nullptr ? pool->pool->users : 0;
}

void Pools::set_flags(PoolId id, unsigned flags) {
  constexpr unsigned kKnown = GLAKE_POOL_USE_ON_OOM | GLAKE_POOL_NO_SPLIT;
  if ((flags & ~kKnown) != 0) {
    throw Error(GLAKE_INVALID_ARGUMENT, "pool flags " + std::to_string(flags) +
                                            ": only GLAKE_POOL_USE_ON_OOM (1) and "
                                            "GLAKE_POOL_NO_SPLIT (2) are known");
  }
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  HotGuard hot(device_.hot);
  if (flags == 0 && find(id) == nullptr) return;
  Heap& pool = need(id);
  Pause(pool).end_if_empty();
  Pause(pool).require_resumed();
  pool.rule.set_flags(flags);
  if (!pool.rule.whole_only()) Frees(pool).drain_whole();
}

// Makes the request that an allocation from the pool starts with. Notes whether a graph is being
// captured. Callers hold the hot lock.
Request Pools::request(Heap& pool, Bytes bytes, StreamHandle stream) {
  device_.collect_caches();  // blocks that threads have freed are in no peak of this request
  Request r = device_.request(bytes, stream);
  if (pool.rule.whole_only()) r.size = round_up(bytes, kGranule);
  ++pool.tick;
  if (device_.clock.capturing(r.stream)) pool.rule.capture();
  return r;
}

// A block of memory that the pool has ready for r; null if it has none.
Block* Pools::quick(Heap& pool, const Request& r, StreamHandle stream) {
  if (pool.rule.frees_recorded_first()) Frees(pool).drain_pending(Wait::kNo);
  if (pool.rule.whole_only()) return Frees(pool).take_whole(r, stream);
  Found found = Search(pool).hit(r);
  return found ? pool.make_block(r, found, stream) : nullptr;
}

Block* Pools::allocate(PoolId id, Bytes bytes, StreamHandle stream) {
  const StreamLives::Named named(device_.driver.streams(), stream);
  {
    HotGuard hot(device_.hot);
    Heap* pool = find(id);
    if (pool != nullptr && pool->started && pool->paused() == nullptr) {
      if (Block* b = quick(*pool, request(*pool, bytes, stream), stream)) return b;
    }
  }
  return Neighbours::helped(device_, [&] {
    MappingTurn turn(device_);
    HotGuard hot(device_.hot);
    Heap& pool = open(id);
    Pause(pool).end_if_empty();
    Pause(pool).require_resumed();
    start(pool, hot);
    Request r = request(pool, bytes, stream);
    if (Block* b = quick(pool, r, stream)) return b;
    return SlowPath(pool).allocate(r, stream, hot);
  });
}

Block* Pools::allocate_at(PoolId id, Address ptr, Bytes bytes, StreamHandle stream) {
  const StreamLives::Named named(device_.driver.streams(), stream);
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  Heap& pool = need(id);
  Pause(pool).end_if_empty();
  Pause(pool).require_resumed();
  Request r = request(pool, bytes, stream);
  bool free = ptr % kAlignment == 0 && pool.started;
  if (free) {
    Frees(pool).drain_pending(Wait::kAllowed);
    Frees(pool).drain_whole();
    free = Checkpoints(pool).free_at(ptr, r.size);
  }
  Found found = free ? Checkpoints(pool).take_at(ptr, r, false) : Found{};
  if (found) return pool.make_block(r, found, stream);
  throw Error(GLAKE_INVALID_ARGUMENT,
              hex(ptr) + (free ? ": other streams may still use that memory of the pool"
                               : " does not begin " + std::to_string(r.size) +
                                     " bytes of free memory of the pool"));
}

void Pools::empty(PoolId id) {
  if (id == PoolId{}) return Reclaim(device_).empty_cache();
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  device_.refusals.count_anew();
  device_.settle(hot);
  Heap* pool = find(id);
  if (pool == nullptr) return;  // ended
  if (pool->started) {
    Frees(*pool).drain_pending(Wait::kAllowed);
    bool synced = !device_.clock.any_capturing();
    if (synced) device_.require(device_.synchronize(hot), "to be synchronised to empty a pool");
    Trim(*pool).all(synced, hot);
  }
  end_unused();
  Reclaim(device_).require_all_given();
}

Checkpoint Pools::checkpoint(PoolId id) {
  HotGuard hot(device_.hot);
  Checkpoint now;
  for (const auto& [ptr, b] : need(id).pool->blocks) {
    if (b->state.load() != BlockState::kLive) continue;
    now.push_back({ptr, b->size, b->requested, b->stream, b->stream_id});
  }
  return now;
}

RestoreLog Pools::restore(PoolId id, const Checkpoint& then) {
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  Heap& pool = need(id);
  Pause(pool).end_if_empty();
  Pause(pool).require_resumed();
  if (!pool.started) {
    if (then.empty()) return {};
    throw Error(GLAKE_INVALID_ARGUMENT, "the pool has no memory: it has ended since");
  }
  return Checkpoints(pool).restore(then);
}

void Pools::end_unused() {
  device_.heaps.retire([](Heap& heap) {
    Pool& pool = *heap.pool;
    // A paused region waits for its resume(), even if all of it has been freed.
    if (pool.region == nullptr) Pause(heap).end_if_empty();
    bool empty = pool.paused == nullptr && pool.users == 0 && pool.blocks.empty() &&
                 heap.whole_blocks.empty() && pool.lent == 0 && heap.pending_frees.empty() &&
                 heap.granules.own().count == 0 && heap.views.count() == 0;
    if (!empty) return false;
    pool = Pool{};
    heap.rule.reset();
    return true;
  });
}

void Pools::abandon() {
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  HotGuard hot(device_.hot);
  for (auto& [id, heap] : device_.heaps.pools()) {
    heap->pool->users = 0;
    heap->rule.note_use();
  }
}

}  // namespace glake
