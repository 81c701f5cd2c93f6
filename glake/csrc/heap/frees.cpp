#include "heap/frees.h"

#include <algorithm>

#include "heap/contiguous_blocks.h"
#include "heap/pieces.h"
#include "watch/watch.h"

namespace glake {

void Frees::drain_caches(bool small_too) {
  if (!heap_.own()) return;  // threads keep no blocks of a pool
  device_.drained.clear();
  for (auto& cache : device_.caches) {
    if (!small_too && !cache->holds_large()) continue;
    cache->drain(small_too, device_.drained);
    cache->collect(device_.stats);
  }
  for (Block* b : device_.drained) free(b);
}

void Frees::free(Block* b) {
  end_share(b);
  if (b->allocation != nullptr) return ContiguousBlocks(device_).free(b);
  if (heap_.pool != nullptr) return free_private(b);
  Tickets tickets(device_.clock.stamp(b->stream_id));
  if (!Heap::frees_later(*b)) {
    for (StreamId s : b->recorded) tickets.add(device_.clock.stamp(s));
    give(b, tickets);
    return;
  }
  keep_waiting(b);
}

void Frees::free_private(Block* b) {
  if (heap_.pool->blocks.erase(b->ptr) == 0) --heap_.pool->lent;
  if (heap_.rule.frees_after_capture(*b) || Heap::frees_later(*b)) {
    keep_waiting(b);
    return;
  }
  Tickets tickets(device_.clock.stamp(b->stream_id));
  for (StreamId s : b->recorded) tickets.add(device_.clock.stamp(s));
  give_private(b, tickets);
}

void Frees::end_share(Block* b) {
  if (b->share == 0) return;
  device_.shares.erase(b->share);
  b->share = 0;
  // share() recorded the block's own stream.
  b->recorded.remove(b->stream_id);
}

// Freed, and nobody else's yet: drain_pending() ends that.
void Frees::keep_waiting(Block* b) {
  PendingFree freed{b, {}};
  for (StreamId s : b->recorded) freed.tickets.push_back(device_.clock.stamp(s));
  heap_.pending_frees.push_back(std::move(freed));
  device_.stats.wait(b->small_pool, b->size, b->requested);
}

void Frees::drain_pending(Wait wait) {
  if (heap_.pending_frees.empty()) return;
  // Of a captured pool it is their own stream's again, but not before every capture is over.
  if (heap_.rule.captured() && device_.clock.any_capturing()) return;
  bool may_wait = heap_.rule.captured() || wait == Wait::kAllowed;
  size_t kept = 0;
  for (PendingFree& freed : heap_.pending_frees) {
    Block* b = freed.block;
    bool ordered = true;
    for (Ticket t : freed.tickets) {
      if (device_.clock.ordered(b->stream_id, t)) continue;
      ordered = may_wait && device_.clock.wait(b->stream_id, Tickets(t));
      if (!ordered) break;
    }
    if (ordered) {
      device_.stats.done_waiting(b->small_pool, b->size, b->requested);
      if (Heap::frees_later(*b)) {
        Watch::event(GLAKE_FREE_COMPLETED, device_.number, b->ptr, b->requested, b->stream,
                     {heap_.pool_id().first, heap_.pool_id().second});
      }
      give_private(b, Tickets(device_.clock.stamp(b->stream_id)));
    } else {
      std::swap(heap_.pending_frees[kept++], freed);
    }
  }
  heap_.pending_frees.resize(kept);
}

// Blocks of a NO_SPLIT pool are kept as they are.
void Frees::give_private(Block* b, const Tickets& tickets) {
  if (!heap_.rule.whole_only()) return give(b, tickets);
  b->recorded.clear();
  heap_.pool->whole.push_back({b, tickets});
}

void Frees::give(Block* b, const Tickets& tickets) {
  Pieces(heap_).release(b, tickets);
  --heap_.live;
  device_.blocks.recycle(b);
}

void Frees::drain_whole() {
  if (heap_.own()) return;
  for (Pool::Whole& w : heap_.pool->whole) give(w.block, w.tickets);
  heap_.pool->whole.clear();
}

Block* Frees::take_whole(const Request& r, StreamHandle stream) {
  std::vector<Pool::Whole>& whole = heap_.pool->whole;
  size_t best = whole.size();
  bool best_ready = false;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i].block->size < r.size || !heap_.rule.can_have(r.stream, whole[i].tickets)) continue;
    bool ready = heap_.rule.ordered(r.stream, whole[i].tickets);
    bool smaller = best == whole.size() || whole[i].block->size < whole[best].block->size;
    if (ready == best_ready ? smaller : ready) {
      best = i;
      best_ready = ready;
    }
  }
  if (best == whole.size()) return nullptr;
  if (!best_ready && !heap_.rule.wait_for(r.stream, whole[best].tickets)) return nullptr;
  Block* b = whole[best].block;
  whole.erase(whole.begin() + static_cast<std::ptrdiff_t>(best));
  b->requested = r.requested;
  b->stream = stream;
  b->stream_id = r.stream;
  for (Span* p = b->pieces; p != nullptr; p = p->piece_next) p->stream = r.stream;
  heap_.pool->blocks.emplace(b->ptr, b);
  device_.stats.allocate(b->small_pool, b->size, b->requested);
  b->state.store(BlockState::kLive, std::memory_order_release);
  return b;
}

}  // namespace glake
