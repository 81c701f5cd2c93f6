#include "heap/checkpoints.h"

#include "heap/frees.h"
#include "heap/pieces.h"

namespace glake {

namespace {

Span* extent_around(const Arena& arena, Address begin, Bytes size) {
  for (Span* head = arena.best_fit(size); head != nullptr; head = arena.next_fit(head)) {
    if (head->begin <= begin && begin + size <= head->begin + head->extent) return head;
  }
  return nullptr;
}

}  // namespace

bool Checkpoints::free_at(Address ptr, Bytes size) {
  if (heap_.small->contains(ptr) || heap_.large->contains(ptr)) {
    return extent_around(heap_.arena_of(ptr), ptr, size) != nullptr;
  }
  View* view = heap_.views.find(ptr);
  return view != nullptr && ptr + size <= view->base + view->length.bytes() &&
         available_.stretch_free(*view, ptr - view->base, size);
}

Found Checkpoints::take_at(Address ptr, const Request& r, bool any_order) {
  if (heap_.small->contains(ptr) || heap_.large->contains(ptr)) {
    Arena& arena = heap_.arena_of(ptr);
    Span* head = extent_around(arena, ptr, r.size);
    const Span* from = head;
    while (from->end() <= ptr) from = from->next;
    bool ready = any_order || (available_.edge_allows(arena, ptr, r.size, r.stream) &&
                               (available_.range_ordered(from, ptr, r.size, r.stream, nullptr) ||
                                available_.wait_for_range(from, ptr, r)));
    return ready ? Pieces(heap_).at_home(arena, head, ptr, r) : Found{};
  }
  View* view = heap_.views.find(ptr);
  Bytes offset = ptr - view->base;
  bool ready = any_order || available_.stretch_ordered(*view, offset, r, nullptr) ||
               available_.wait_for_stretch(*view, offset, r);
  return ready ? Pieces(heap_).on_view(view, offset, r) : Found{};
}

RestoreLog Checkpoints::restore(const Checkpoint& then) {
  Frees(heap_).drain_pending(Wait::kAllowed);
  Frees(heap_).drain_whole();
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
    Frees(heap_).end_share(b);
    device_.stats.free(b->small_pool, b->size, b->requested);
    --heap_.live;
    device_.blocks.recycle(b);
  }
  heap_.pool->blocks.clear();
  for (size_t i = 0; i < then.size(); ++i) {
    const SavedBlock& s = then[i];
    heap_.make_block({s.size, s.requested, s.stream_id}, taken[i], s.stream);
    // The graph may use the block like one that was allocated during the capture.
    if (device_.clock.capturing(s.stream_id)) heap_.rule.capture();
  }
  log.allocated = then;
  return log;
}

// Frees every live block but keeps its record, so that put_back() can undo it.
std::vector<Block*> Checkpoints::lift_all() {
  std::vector<Block*> lifted;
  auto refuse = [&lifted](const std::string& why) {
    for (Block* b : lifted) b->state.store(BlockState::kLive);
    throw Error(GLAKE_INVALID_ARGUMENT, "the pool cannot be restored: " + why);
  };
  for (const auto& [ptr, b] : heap_.pool->blocks) {
    BlockState live = BlockState::kLive;
    if (!b->state.compare_exchange_strong(live, BlockState::kCached)) {
      refuse("the block at " + hex(ptr) + " is being freed by another thread");
    }
    lifted.push_back(b);
    if (heap_.rule.restores_in_order() && Heap::frees_later(*b)) {
      refuse("the block at " + hex(ptr) + " is recorded on too many streams; free it first");
    }
  }
  for (Block* b : lifted) {
    Tickets tickets(device_.clock.stamp(b->stream_id));
    for (StreamId s : b->recorded) {
      if (heap_.rule.restores_in_order() && s != b->stream_id) tickets.add(device_.clock.stamp(s));
    }
    Pieces(heap_).release(b, tickets);
  }
  return lifted;
}

void Checkpoints::put_back(const std::vector<Block*>& lifted) {
  for (Block* b : lifted) {
    Found found = take_at(b->ptr, {b->size, b->requested, b->stream_id}, true);
    b->pieces = found.pieces;
    PointerMap::find(b->ptr)->insert(b);
    b->state.store(BlockState::kLive, std::memory_order_release);
  }
}

// Takes the memory of every block of the checkpoint. If one cannot be had, it takes nothing and
// returns an empty list.
std::vector<Found> Checkpoints::take_all(const Checkpoint& then) {
  std::vector<Found> taken;
  for (const SavedBlock& s : then) {
    if (!free_at(s.ptr, s.size)) return {};
  }
  for (const SavedBlock& s : then) {
    const Request r{s.size, s.requested, s.stream_id};
    taken.push_back(take_at(s.ptr, r, !heap_.rule.restores_in_order()));
    if (taken.back()) continue;
    taken.pop_back();  // a wait was refused
    for (size_t i = 0; i < taken.size(); ++i) {
      Block undone;
      undone.ptr = taken[i].ptr;
      undone.stream_id = then[i].stream_id;
      undone.pieces = taken[i].pieces;
      undone.view = taken[i].view;
      PointerMap::find(undone.ptr)->insert(&undone);
      Pieces(heap_).release(&undone, Tickets(device_.clock.stamp(undone.stream_id)));
    }
    return {};
  }
  return taken;
}

}  // namespace glake
