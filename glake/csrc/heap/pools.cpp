// Private pools, and what the heaps of one device do for each other when memory runs out.
#include <algorithm>

#include "heap/device_allocator.h"

namespace glake {
namespace {

std::string name_of(PoolId id) { return RegionBook::instance().text(id); }

}  // namespace

DeviceShared::DeviceShared(Driver& driver, int device)
    : clock(driver, device),
      refusals(driver),
      deferred(driver, refusals),
      contiguous(driver, device, refusals),
      grants{device} {}

DeviceShared::~DeviceShared() = default;

DeviceAllocator* DeviceAllocator::find_pool(PoolId id) {
  auto found = shared_.pools.find(id);
  return found != shared_.pools.end() ? found->second.get() : nullptr;
}

DeviceAllocator& DeviceAllocator::need_pool(PoolId id) {
  DeviceAllocator* pool = find_pool(id);
  if (pool != nullptr) return *pool;
  throw Error(GLAKE_INVALID_ARGUMENT,
              device_text(device_) + " has no " + name_of(id) +
                  "; an allocation from it, or glake_pool_retain(), makes it");
}

// The pool's heap, made if need be: one whose pool has ended, or a new one.
DeviceAllocator& DeviceAllocator::open_pool(PoolId id) {
  if (id == PoolId{}) {
    throw Error(GLAKE_INVALID_ARGUMENT, "pool {0, 0} is the device's own memory, no private pool");
  }
  std::unique_ptr<DeviceAllocator>& heap = shared_.pools[id];
  if (heap == nullptr && !shared_.spare.empty()) {
    heap = std::move(shared_.spare.back());
    shared_.spare.pop_back();
  }
  if (heap == nullptr) heap = std::make_unique<DeviceAllocator>(*this);
  heap->pool_->id = id;
  heap->pool_->region = RegionBook::instance().find(id);
  return *heap;
}

void DeviceAllocator::start_pool(HotGuard& hot) {
  if (started_) return;
  hot.unlock();
  reserve_arenas();
  hot.lock();
  started_ = true;
}

void DeviceAllocator::retain_pool(PoolId id) {
  std::lock_guard<FairMutex> slow(slow_);
  HotGuard hot(hot_);
  DeviceAllocator& heap = open_pool(id);
  Pool& pool = *heap.pool_;
  if (pool.users == 0 && pool.blocks.empty()) {  // it had ended
    pool.flags = 0;
    heap.drain_whole();
  }
  ++pool.users;
}

void DeviceAllocator::release_pool(PoolId id) {
  std::lock_guard<FairMutex> slow(slow_);
  HotGuard hot(hot_);
  Pool& pool = *need_pool(id).pool_;
  if (pool.users == 0) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                name_of(id) + " has no user: released more often than retained");
  }
  if (--pool.users == 0) pool.released_at = clock_.syncs_begun();
  end_pools();
}

int DeviceAllocator::pool_users(PoolId id) {
  HotGuard hot(hot_);
  DeviceAllocator* pool = find_pool(id);
  return pool != nullptr ? pool->pool_->users : 0;
}

void DeviceAllocator::set_pool_flags(PoolId id, unsigned flags) {
  constexpr unsigned kKnown = GLAKE_POOL_USE_ON_OOM | GLAKE_POOL_NO_SPLIT;
  if ((flags & ~kKnown) != 0) {
    throw Error(GLAKE_INVALID_ARGUMENT, "pool flags " + std::to_string(flags) +
                                            ": only GLAKE_POOL_USE_ON_OOM (1) and "
                                            "GLAKE_POOL_NO_SPLIT (2) are known");
  }
  std::lock_guard<FairMutex> slow(slow_);
  HotGuard hot(hot_);
  if (flags == 0 && find_pool(id) == nullptr) return;
  DeviceAllocator& pool = need_pool(id);
  pool.drop_freed();
  pool.require_resumed();
  pool.pool_->flags = flags;
  if (!pool.pool_->whole_only()) pool.drain_whole();
}

// As an allocation from the pool starts, under hot_: here it is seen that a graph is captured.
DeviceAllocator::Request DeviceAllocator::request_from(DeviceAllocator& pool, Bytes bytes,
                                                       StreamHandle stream) {
  Request r = request(bytes, stream);
  if (pool.pool_->whole_only()) r.size = round_up(bytes, kGranule);
  ++pool.tick_;
  if (clock_.capturing(r.stream)) {
    pool.captured_ = true;
    pool.pool_->released_at = clock_.syncs_begun();
  }
  return r;
}

// Memory the pool has ready for r, or null.
Block* DeviceAllocator::quick(const Request& r, StreamHandle stream) {
  if (captured_) drain_pending(Wait::kNo);
  if (pool_->whole_only()) return take_whole(r, stream);
  Found found = hit(r);
  return found ? make_block(r, found, stream) : nullptr;
}

Block* DeviceAllocator::allocate_from(PoolId id, Bytes bytes, StreamHandle stream) {
  {
    HotGuard hot(hot_);
    DeviceAllocator* pool = find_pool(id);
    if (pool != nullptr && pool->started_ && pool->paused() == nullptr) {
      if (Block* b = pool->quick(request_from(*pool, bytes, stream), stream)) return b;
    }
  }
  std::lock_guard<FairMutex> slow_guard(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  HotGuard hot(hot_);
  DeviceAllocator& pool = open_pool(id);
  pool.drop_freed();
  pool.require_resumed();
  pool.start_pool(hot);
  Request r = request_from(pool, bytes, stream);
  if (Block* b = pool.quick(r, stream)) return b;
  return pool.allocate_slowly(r, stream, hot);
}

// NO_SPLIT: the smallest freed block that does, as it is.
Block* DeviceAllocator::take_whole(const Request& r, StreamHandle stream) {
  std::vector<Whole>& whole = pool_->whole;
  size_t best = whole.size();
  bool best_ready = false;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i].block->size < r.size || !can_have(r.stream, whole[i].tickets)) continue;
    bool ready = ordered(r.stream, whole[i].tickets);
    bool smaller = best == whole.size() || whole[i].block->size < whole[best].block->size;
    if (ready == best_ready ? smaller : ready) {
      best = i;
      best_ready = ready;
    }
  }
  if (best == whole.size()) return nullptr;
  if (!best_ready && !wait_for(r.stream, whole[best].tickets)) return nullptr;
  Block* b = whole[best].block;
  whole.erase(whole.begin() + static_cast<std::ptrdiff_t>(best));
  b->requested = r.requested;
  b->stream = stream;
  b->stream_id = r.stream;
  for (Span* p = b->pieces; p != nullptr; p = p->piece_next) p->stream = r.stream;
  pool_->blocks.emplace(b->ptr, b);
  stats_.allocate(b->small_pool, b->size, b->requested);
  b->state.store(BlockState::kLive, std::memory_order_release);
  return b;
}

void DeviceAllocator::free_private(Block* b) {
  if (pool_->blocks.erase(b->ptr) == 0) --pool_->lent;
  // What other streams do with captured memory, they do in the graph: no event can say when.
  bool held = captured_ && !b->recorded.empty();
  if (held || frees_later(*b)) {
    keep_waiting(b);
    return;
  }
  Tickets tickets(clock_.stamp(b->stream_id));
  for (StreamId s : b->recorded) tickets.add(clock_.stamp(s));
  give_private(b, tickets);
}

// Blocks of a NO_SPLIT pool are kept as they are.
void DeviceAllocator::give_private(Block* b, const Tickets& tickets) {
  if (pool_ == nullptr || !pool_->whole_only()) return give_pieces(b, tickets);
  b->recorded.clear();
  pool_->whole.push_back({b, tickets});
}

// After drain_pending(), which may add to them.
void DeviceAllocator::drain_whole() {
  if (pool_ == nullptr) return;
  for (Whole& w : pool_->whole) give_pieces(w.block, w.tickets);
  pool_->whole.clear();
}

// Once the last user has left and the device has been synchronised, no graph uses the memory. True
// if that is so from now on.
bool DeviceAllocator::thaw() {
  if (!captured_ || pool_->users != 0 || clock_.synced() <= pool_->released_at) return false;
  captured_ = false;
  return true;
}

// The device's own heap, then those of pools that have had memory.
std::vector<DeviceAllocator*> DeviceAllocator::heaps() {
  std::vector<DeviceAllocator*> all;
  if (shared_.own->started_) all.push_back(shared_.own);
  for (auto& [id, pool] : shared_.pools) {
    if (pool->started_) all.push_back(pool.get());
  }
  return all;
}

// Pools with neither users nor blocks nor memory are no more; their heaps serve others.
void DeviceAllocator::end_pools() {
  for (auto it = shared_.pools.begin(); it != shared_.pools.end();) {
    DeviceAllocator& heap = *it->second;
    heap.drop_freed();
    Pool& pool = *heap.pool_;
    bool empty = pool.paused == nullptr && pool.users == 0 && pool.blocks.empty() &&
                 pool.whole.empty() && pool.lent == 0 && heap.pending_frees_.empty() &&
                 heap.granules_.own().count == 0 && heap.views_.count() == 0;
    if (!empty) {
      ++it;
      continue;
    }
    pool = Pool{};
    heap.captured_ = false;
    shared_.spare.push_back(std::move(it->second));
    it = shared_.pools.erase(it);
  }
}

void DeviceAllocator::empty_pool(PoolId id) {
  if (id == PoolId{}) return empty_cache();
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  HotGuard hot(hot_);
  shared_.refusals.kept = {0};
  settle(hot);
  DeviceAllocator* pool = find_pool(id);
  if (pool == nullptr) return;  // ended
  if (pool->started_) {
    pool->drain_pending(Wait::kAllowed);
    bool synced = !clock_.any_capturing();
    if (synced) require(synchronize(hot), "to be synchronised to empty a pool");
    pool->trim_all(synced, hot);
  }
  end_pools();
  require_all_given();
}

// Has other heaps give memory back so that this one may grow; makes nobody wait. True if any did.
bool DeviceAllocator::reclaim_elsewhere(const Request& r, HotGuard& hot) {
  // What is held above a limit that was lowered must go first.
  Granules want = Granules::ceil(r.size) + above_limit(), got{0};
  std::vector<DeviceAllocator*> all = heaps();
  std::rotate(all.begin(), all.begin() + 1, all.end());  // the device's own last
  for (DeviceAllocator* heap : all) {
    bool may = heap != this && (heap->pool_ == nullptr || heap->idle());
    if (may && got < want) got = got + heap->shrink(want - got, hot);
  }
  return got.count != 0;
}

Granules DeviceAllocator::shrink(Granules want, HotGuard& hot) {
  thaw();
  if (captured_ || paused() != nullptr) return {0};
  drain_caches(true);
  drain_pending(Wait::kNo);
  drain_whole();
  clock_.mark_all();
  clock_.poll();
  Granules got = trim(want, hot);
  if (!(got < want) || views_.count() == 0) return got;
  std::vector<View*> oldest(views_.recent_first().rbegin(), views_.recent_first().rend());
  for (View* view : oldest) evict(view, hot);
  return got + trim(want - got, hot);
}

// A block of a pool that lets others have its free memory rather than run out.
// Not for a graph: the lender would have the bytes again while the graph may still be replayed.
Block* DeviceAllocator::borrow(const Request& r, StreamHandle stream, HotGuard& hot) {
  if (captured_) return nullptr;
  if (pool_ != nullptr && pool_->region != nullptr) return nullptr;  // it could not be paused
  for (DeviceAllocator* heap : heaps()) {
    bool may = heap != this && heap->pool_ != nullptr && !heap->captured_ &&
               heap->paused() == nullptr && (heap->pool_->flags & GLAKE_POOL_USE_ON_OOM) != 0;
    if (!may) continue;
    Block* b = nullptr;
    if (heap->pool_->whole_only()) {
      b = heap->take_whole(r, stream);
    } else {
      Found found = heap->hit(r);
      if (!found) found = heap->last_resort(r, hot);
      if (found) b = heap->make_block(r, found, stream);
    }
    if (b == nullptr) continue;
    // Not one of the pool's own: no checkpoint has it.
    heap->pool_->blocks.erase(b->ptr);
    ++heap->pool_->lent;
    return b;
  }
  return nullptr;
}

// Before the device is closed: no pool has users any more.
void DeviceAllocator::abandon_pools() {
  std::lock_guard<FairMutex> slow(slow_);
  HotGuard hot(hot_);
  for (auto& [id, heap] : shared_.pools) {
    heap->pool_->users = 0;
    heap->pool_->released_at = clock_.syncs_begun();
  }
}

void DeviceAllocator::close_pools(Status* s) {
  auto close = [s](DeviceAllocator& heap) {
    heap.started_ = false;
    *s = heap.release_ranges();
    return s->ok();
  };
  while (s->ok() && !shared_.pools.empty() && close(*shared_.pools.begin()->second)) {
    shared_.pools.erase(shared_.pools.begin());
  }
  while (s->ok() && !shared_.spare.empty() && close(*shared_.spare.back())) {
    shared_.spare.pop_back();
  }
}

}  // namespace glake
