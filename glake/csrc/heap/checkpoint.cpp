// Allocating at a given address of a private pool, and returning to the blocks that were live
// before.
#include "heap/checkpoint.h"

#include "heap/device_allocator.h"

namespace glake {
namespace {

Span* extent_around(const Arena& arena, Address begin, Bytes size) {
  for (Span* head = arena.best_fit(size); head != nullptr; head = arena.next_fit(head)) {
    if (head->begin <= begin && begin + size <= head->begin + head->extent) return head;
  }
  return nullptr;
}

}  // namespace

// True if the bytes at `ptr` are this heap's, and nobody's.
bool DeviceAllocator::free_at(Address ptr, Bytes size) {
  if (small_->contains(ptr) || large_->contains(ptr)) {
    return extent_around(arena_of(ptr), ptr, size) != nullptr;
  }
  View* view = views_.find(ptr);
  return view != nullptr && ptr + size <= view->base + view->length.bytes() &&
         stretch_free(*view, ptr - view->base, size);
}

// The bytes at `ptr`, which are free. Unless any order will do, only if r's stream may use them now
// or after a wait.
DeviceAllocator::Found DeviceAllocator::take_at(Address ptr, const Request& r, bool any_order) {
  if (small_->contains(ptr) || large_->contains(ptr)) {
    Arena& arena = arena_of(ptr);
    Span* head = extent_around(arena, ptr, r.size);
    const Span* from = head;
    while (from->end() <= ptr) from = from->next;
    bool ready =
        any_order ||
        (edge_allows(arena, ptr, r.size, r.stream) &&
         (range_ordered(from, ptr, r.size, r.stream, nullptr) || wait_for_range(from, ptr, r)));
    return ready ? at_home(arena, head, ptr, r) : Found{};
  }
  View* view = views_.find(ptr);
  Bytes offset = ptr - view->base;
  bool ready =
      any_order || stretch_ordered(*view, offset, r, nullptr) || wait_for_stretch(*view, offset, r);
  return ready ? on_view(view, offset, r) : Found{};
}

Block* DeviceAllocator::allocate_at(PoolId id, Address ptr, Bytes bytes, StreamHandle stream) {
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  HotGuard hot(hot_);
  DeviceAllocator& pool = need_pool(id);
  pool.drop_freed();
  pool.require_resumed();
  Request r = request_from(pool, bytes, stream);
  bool free = ptr % kAlignment == 0 && pool.started_;
  if (free) {
    pool.drain_pending(Wait::kAllowed);
    pool.drain_whole();
    free = pool.free_at(ptr, r.size);
  }
  Found found = free ? pool.take_at(ptr, r, false) : Found{};
  if (found) return pool.make_block(r, found, stream);
  throw Error(GLAKE_INVALID_ARGUMENT,
              hex(ptr) + (free ? ": other streams may still use that memory of the pool"
                               : " does not begin " + std::to_string(r.size) +
                                     " bytes of free memory of the pool"));
}

Checkpoint DeviceAllocator::checkpoint(PoolId id) {
  HotGuard hot(hot_);
  Checkpoint now;
  for (const auto& [ptr, b] : need_pool(id).pool_->blocks) {
    if (b->state.load() != BlockState::kLive) continue;
    now.push_back({ptr, b->size, b->requested, b->stream, b->stream_id});
  }
  return now;
}

// Frees every live block but keeps its record, so that put_back() can undo it.
std::vector<Block*> DeviceAllocator::lift_all() {
  std::vector<Block*> lifted;
  auto refuse = [&lifted](const std::string& why) {
    for (Block* b : lifted) b->state.store(BlockState::kLive);
    throw Error(GLAKE_INVALID_ARGUMENT, "the pool cannot be restored: " + why);
  };
  for (const auto& [ptr, b] : pool_->blocks) {
    BlockState live = BlockState::kLive;
    if (!b->state.compare_exchange_strong(live, BlockState::kCached)) {
      refuse("the block at " + hex(ptr) + " is being freed by another thread");
    }
    lifted.push_back(b);
    if (!captured_ && frees_later(*b)) {
      refuse("the block at " + hex(ptr) + " is recorded on too many streams; free it first");
    }
  }
  for (Block* b : lifted) {
    Tickets tickets(clock_.stamp(b->stream_id));
    for (StreamId s : b->recorded) {
      if (!captured_ && s != b->stream_id) tickets.add(clock_.stamp(s));
    }
    release_pieces(b, tickets);
  }
  return lifted;
}

void DeviceAllocator::put_back(const std::vector<Block*>& lifted) {
  for (Block* b : lifted) {
    Found found = take_at(b->ptr, {b->size, b->requested, b->stream_id}, true);
    b->pieces = found.pieces;
    PointerMap::find(b->ptr)->insert(b);
    b->state.store(BlockState::kLive, std::memory_order_release);
  }
}

// The memory of every block of the checkpoint; empty, and nothing taken, if one cannot be had.
std::vector<DeviceAllocator::Found> DeviceAllocator::take_all(const Checkpoint& then) {
  std::vector<Found> taken;
  for (const SavedBlock& s : then) {
    if (!free_at(s.ptr, s.size)) return {};
  }
  for (const SavedBlock& s : then) {
    taken.push_back(take_at(s.ptr, {s.size, s.requested, s.stream_id}, captured_));
    if (taken.back()) continue;
    taken.pop_back();  // a wait was refused
    for (size_t i = 0; i < taken.size(); ++i) {
      Block undone;
      undone.ptr = taken[i].ptr;
      undone.stream_id = then[i].stream_id;
      undone.pieces = taken[i].pieces;
      undone.view = taken[i].view;
      PointerMap::find(undone.ptr)->insert(&undone);
      release_pieces(&undone, Tickets(clock_.stamp(undone.stream_id)));
    }
    return {};
  }
  return taken;
}

RestoreLog DeviceAllocator::restore_here(const Checkpoint& then) {
  drain_pending(Wait::kAllowed);
  drain_whole();
  RestoreLog log;
  std::vector<Block*> before = lift_all();
  std::vector<Found> taken = take_all(then);
  if (taken.size() != then.size()) {
    put_back(before);
    throw Error(GLAKE_INVALID_ARGUMENT,
                "the pool cannot be restored: memory of a block of the checkpoint is not the "
                "pool's any more, or other work may still use it; nothing was changed");
  }
  for (Block* b : before) {
    log.freed.push_back({b->ptr, b->size, b->requested, b->stream, b->stream_id});
    end_share(b);
    stats_.free(b->small_pool, b->size, b->requested);
    --live_;
    blocks_.recycle(b);
  }
  pool_->blocks.clear();
  for (size_t i = 0; i < then.size(); ++i) {
    const SavedBlock& s = then[i];
    make_block({s.size, s.requested, s.stream_id}, taken[i], s.stream);
  }
  log.allocated = then;
  return log;
}

RestoreLog DeviceAllocator::restore(PoolId id, const Checkpoint& then) {
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  HotGuard hot(hot_);
  DeviceAllocator& pool = need_pool(id);
  pool.drop_freed();
  pool.require_resumed();
  if (!pool.started_) {
    if (then.empty()) return {};
    throw Error(GLAKE_INVALID_ARGUMENT, "the pool has no memory: it has ended since");
  }
  return pool.restore_here(then);
}

}  // namespace glake
