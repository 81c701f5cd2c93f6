#include "heap/frees.h"

#include <algorithm>

#include "heap/contiguous_blocks.h"
#include "heap/pieces.h"
#include "watch/watch.h"

namespace glake {

void Frees::drain_caches(bool small_too) {
  if (!heap_.rule.cached_by_threads()) return;
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
  heap_.unlist(b);
  if (heap_.rule.frees_after_capture(*b) || Heap::frees_later(*b)) {
    keep_waiting(b);
    return;
  }
  Tickets tickets(device_.clock.stamp(b->stream_id));
  for (StreamId s : b->recorded) tickets.add(device_.clock.stamp(s));
  give_or_keep(b, tickets);
}

void Frees::end_share(Block* b) {
  if (b->share == 0) return;
  device_.shares.erase(b->share);
  b->share = 0;
  // share() recorded the block's own stream.
  b->recorded.remove(b->stream_id);
}

// The block is freed, but nobody may have its bytes yet. drain_pending() ends that.
void Frees::keep_waiting(Block* b) {
  PendingFree freed{b, {}};
  for (StreamId s : b->recorded) freed.tickets.push_back(device_.clock.stamp(s));
  heap_.pending_frees.push_back(std::move(freed));
  device_.stats.wait(b->small_pool, b->size, b->requested);
}

void Frees::drain_pending(Wait wait) {
  if (heap_.pending_frees.empty()) return;
  if (heap_.rule.holds_recorded()) return;
  const bool may_wait = heap_.rule.orders_recorded(wait);
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
      give_or_keep(b, Tickets(device_.clock.stamp(b->stream_id)));
    } else {
      std::swap(heap_.pending_frees[kept++], freed);
    }
  }
  heap_.pending_frees.resize(kept);
}

void Frees::give_or_keep(Block* b, const Tickets& tickets) {
  if (!heap_.rule.whole_only()) return give(b, tickets);
  b->recorded.clear();
  heap_.whole_blocks.push_back({b, tickets});
}

void Frees::give(Block* b, const Tickets& tickets) {
  Pieces(heap_).release(b, tickets);
  --heap_.live;
  device_.blocks.recycle(b);
}

void Frees::drain_whole() {
  for (WholeBlock& w : heap_.whole_blocks) give(w.block, w.tickets);
  heap_.whole_blocks.clear();
}

Block* Frees::take_whole(const Request& r, StreamHandle stream) {
  std::vector<WholeBlock>& whole = heap_.whole_blocks;
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
