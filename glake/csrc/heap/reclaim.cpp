// Giving memory back: to the arenas on free, to the driver on trim and eviction.
#include <algorithm>

#include "heap/device_allocator.h"
#include "watch/watch.h"

namespace glake {

// A block's bytes are free again; its record is the caller's still.
void DeviceAllocator::release_pieces(Block* b, const Tickets& tickets) {
  PointerMap::find(b->ptr)->erase(b);
  if (b->view != nullptr) {
    use_edges(b->pieces, b->stream_id, -1);
    if (paused() == nullptr || paused()->state == PauseState::kSaving) {
      show_stitched(b->pieces, b->ptr, b->size, false);
    }
    --b->view->live;
    for (Ticket t : tickets) b->view->tickets_full |= !b->view->tickets.add(t);
  }
  for (Span* p = b->pieces; p != nullptr;) {
    Span* next = p->piece_next;
    arena_of(p->begin).give(p, tickets, completion());
    p = next;
  }
  b->pieces = nullptr;
}

void DeviceAllocator::give_pieces(Block* b, const Tickets& tickets) {
  release_pieces(b, tickets);
  --live_;
  blocks_.recycle(b);
}

// No other process may open the block from now on.
void DeviceAllocator::end_share(Block* b) {
  if (b->share == 0) return;
  shared_.shares.erase(b->share);
  b->share = 0;
  // share() recorded the block's own stream.
  b->recorded.remove(b->stream_id);
}

void DeviceAllocator::free_locked(Block* b) {
  end_share(b);
  if (b->chunk != nullptr) return free_contiguous(b);
  if (pool_ != nullptr) return free_private(b);
  Tickets tickets(clock_.stamp(b->stream_id));
  if (!frees_later(*b)) {
    for (StreamId s : b->recorded) tickets.add(clock_.stamp(s));
    give_pieces(b, tickets);
    return;
  }
  keep_waiting(b);
}

// Freed, and nobody else's yet: drain_pending() ends that.
void DeviceAllocator::keep_waiting(Block* b) {
  PendingFree freed{b, {}};
  for (StreamId s : b->recorded) freed.tickets.push_back(clock_.stamp(s));
  pending_frees_.push_back(std::move(freed));
  stats_.wait(b->small_pool, b->size, b->requested);
}

void DeviceAllocator::drain_caches(bool small_too) {
  drained_.clear();
  for (auto& cache : caches_) {
    if (!small_too && !cache->holds_large()) continue;
    cache->drain(small_too, drained_);
    cache->collect(stats_);
  }
  for (Block* b : drained_) free_locked(b);
}

// Gives back the held blocks whose recorded work is complete, or, where waiting is allowed, ordered
// before their own stream's next: that stream's ticket then does for all.
void DeviceAllocator::drain_pending(Wait wait) {
  if (pending_frees_.empty()) return;
  // Of a captured pool it is their own stream's again, but not before every capture is over.
  if (captured_ && clock_.any_capturing()) return;
  bool may_wait = captured_ || wait == Wait::kAllowed;
  size_t kept = 0;
  for (PendingFree& freed : pending_frees_) {
    Block* b = freed.block;
    bool ordered = true;
    for (Ticket t : freed.tickets) {
      if (clock_.ordered(b->stream_id, t)) continue;
      ordered = may_wait && clock_.wait(b->stream_id, Tickets(t));
      if (!ordered) break;
    }
    if (ordered) {
      stats_.done_waiting(b->small_pool, b->size, b->requested);
      if (frees_later(*b)) {
        Watch::event(GLAKE_FREE_COMPLETED, device_, b->ptr, b->requested, b->stream,
                     {pool_id().first, pool_id().second});
      }
      give_private(b, Tickets(clock_.stamp(b->stream_id)));
    } else {
      std::swap(pending_frees_[kept++], freed);
    }
  }
  pending_frees_.resize(kept);
}

// Counts (step = 1) or discounts (-1) one alias of each granule.
void DeviceAllocator::add_aliases(const std::vector<Run>& runs, int step) {
  for (const Run& run : runs) {
    for (uint64_t i = 0; i < run.count; ++i) {
      uint32_t& aliases = granules_.aliases(*run.arena, run.granule + i);
      aliases = static_cast<uint32_t>(static_cast<int>(aliases) + step);
    }
  }
}

// Unmaps an idle view whose work is complete. A refusal leaves it as it was.
bool DeviceAllocator::evict(View* view, HotGuard& hot) {
  if (!idle(*view)) return false;
  std::unique_ptr<View> owner = views_.remove(view);
  hot.unlock();
  Status s = shared_.refusals.note("cuMemUnmap", driver_.unmap(view->base, view->length.bytes()));
  hot.lock();
  if (!s.ok()) {
    shared_.refusals.kept = shared_.refusals.kept + view->length;
    views_.add(std::move(owner));
    return false;
  }
  add_aliases(view->runs, -1);
  view_space_->give(view->base, view->capacity);
  ++stats_.evictions;
  return true;
}

// Keeps the addresses mapped by views under the budget, oldest use first. Views with pending work
// are kept while the budget is exceeded by less than half; beyond that the host waits for them.
void DeviceAllocator::make_view_room(Granules n, HotGuard& hot) {
  if (captured_) return;
  Granules budget{static_cast<uint64_t>(static_cast<double>(limit_.count) * options_.view_budget)};
  if (!(budget < views_.mapped() + n)) return;
  for (View* view : views_.oldest()) {
    ++stats_.views_walked;
    if (!(budget < views_.mapped() + n)) return;
    if (view->live != 0 || view->pins != 0) continue;
    bool over = budget.count + budget.count / 2 < views_.mapped().count + n.count;
    if (!ask_idle(*view) && over) clock_.wait_host(view->tickets);
    evict(view, hot);
  }
}

// Tries again what is owed; with kAgain, since memory is wanted now, takes into use what is mapped.
void DeviceAllocator::settle(HotGuard& hot, Use use) {
  if (deferred_.empty() && !contiguous_.owes()) return;
  hot.unlock();
  deferred_.settle();
  contiguous_.settle();
  if (use == Use::kAgain) deferred_.keep_mapped();
  hot.lock();
}

// How many granules from g on, up to `most`, may go back to the driver: wholly free, mapped by no
// view, pinned by nobody, every past user done. `at` is as far as the walk over the arena's
// spans has come, so that a search over many granules looks at each span a few times at most;
// null: it begins here.
uint64_t DeviceAllocator::settled_run(const Arena& arena, uint64_t g, uint64_t most,
                                      const Span*& at) {
  for (uint64_t n = 0; n < most; ++n) {
    Address begin = arena.granule_at(g + n);
    if (granules_.aliases(arena, g + n) != 0 || granules_.pins(arena, g + n) != 0) return n;
    if (at == nullptr) at = arena.free_span_at(begin);
    for (; at->end() <= begin; at = at->next) ++stats_.segments_walked;
    for (const Span* s = at; s != nullptr && s->begin < begin + kGranule; s = s->next) {
      ++stats_.segments_walked;
      if (!clock_.complete(s->tickets)) return n;
    }
  }
  return most;
}

// Gives wholly free granules that no view maps and no work uses back to the driver, until it has
// given back `want`. Returns how many.
Granules DeviceAllocator::trim(Granules want, HotGuard& hot) {
  Granules given{0};
  for (Arena* arena : {large_.get(), small_.get()}) {
    const Span* at = nullptr;
    for (uint64_t g = 0; g < arena->granule_count() && given < want && !captured_;) {
      uint64_t skip = arena->busy_run(g, arena->granule_count() - g);
      if (skip != 0) {
        g += skip;
        continue;
      }
      uint64_t most = std::min(arena->granule_count() - g, (want - given).count);
      uint64_t n = settled_run(*arena, g, arena->free_run(g, most), at);
      if (n == 0) {
        ++g;
        continue;
      }
      given = given + give_granules(*arena, g, Granules{n}, hot);
      at = nullptr;  // the lock was let go
      g += n;
    }
  }
  driver_full_ = false;
  if (given.count != 0) forget_refusals(given);
  return given;
}

// Gives free granules back to the driver; how many it took.
Granules DeviceAllocator::give_granules(Arena& arena, uint64_t g, Granules n, HotGuard& hot) {
  Span* s = arena.take(arena.extent_at_prefix(g), arena.granule_at(g), n.bytes());
  hot.unlock();
  Status status = granules_.unback(arena, s->begin, n);
  hot.lock();
  if (!status.ok()) {
    arena.give(s, Tickets{}, completion());
    return {0};
  }
  Watch::event(GLAKE_SEGMENT_UNMAP, device_, s->begin, n.bytes());
  if (debug_hooks() != nullptr) debug_hooks()->forget(s->begin, n.bytes());
  arena.disclaim(s);
  stats_.reserved_bytes.subtract(&arena == small_.get(), static_cast<int64_t>(n.bytes()));
  return n;
}

// Waits on the host for all the device's work; what was freed before is then free for every stream.
Status DeviceAllocator::synchronize(HotGuard& hot) {
  Status s = wait_for_device(hot);
  if (!s.ok()) return s;
  // What waited in a pool for its graph is freed only now: one more wait is of no work, and tells
  // that streams which have been destroyed are done with it.
  bool thawed = false;
  for (DeviceAllocator* heap : heaps()) {
    if (!heap->thaw() || heap->pending_frees_.empty()) continue;
    heap->drain_pending(Wait::kNo);
    thawed = true;
  }
  return thawed ? wait_for_device(hot) : s;
}

Status DeviceAllocator::wait_for_device(HotGuard& hot) {
  clock_.begin_sync();
  hot.unlock();
  Status s = driver_.synchronize(device_);
  hot.lock();
  if (s.ok()) {
    ++stats_.device_syncs;
    clock_.end_sync();
  }
  return s;
}

// Waits on the host for what keeps freed memory, so that no request is refused for its sake: for
// all the device's work, since none could be marked on a destroyed stream; while a graph is
// captured, which that would break, for marks on other streams. False if that told nothing.
bool DeviceAllocator::wait_for_work(HotGuard& hot) {
  if (!clock_.any_capturing()) return synchronize(hot).ok();
  const std::vector<EventId> marks = clock_.last_marks();
  hot.unlock();
  for (EventId mark : marks) driver_.wait_host(mark);
  hot.lock();
  clock_.poll();
  return true;
}

void DeviceAllocator::empty_cache() {
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  HotGuard hot(hot_);
  // Whoever gives memory back wants less of it held: what was live before says no more how much
  // may be hoarded rather than waited for.
  for (DeviceAllocator* heap : heaps()) heap->most_live_ = 0;
  give_back(hot);
  require_all_given();
}

// Under slow_, the device's context current.
void DeviceAllocator::give_back(HotGuard& hot) {
  shared_.refusals.kept = {0};
  settle(hot);
  drain_caches(true);
  drain_pending(Wait::kAllowed);
  // While a graph is captured nothing may wait for the device: what is not known complete stays.
  bool synced = !clock_.any_capturing();
  if (synced) require(synchronize(hot), "to be synchronised for empty_cache");
  trim_contiguous(hot);
  trim_heaps(synced, hot);
}

// Idle granules that the driver refused to unmap: no more than there are, since two views that stay
// may hold the same one.
Granules DeviceAllocator::kept_mapped() {
  Granules idle{0};
  for (DeviceAllocator* heap : heaps()) idle = idle + heap->whole_free();
  return shared_.refusals.kept < idle ? shared_.refusals.kept : idle;
}

// A driver that keeps memory it was to take back must not go unnoticed: what is asked for next, by
// whoever it was made room for, may not be there. Throws Error.
void DeviceAllocator::require_all_given() {
  Bytes owed_bytes = this->owed_bytes();
  Bytes kept = kept_mapped().bytes();
  Bytes addresses = contiguous_.owed_addresses() + shared_.imported_addresses;
  if (owed_bytes == 0 && kept == 0 && addresses == 0) return;
  const std::string reserved =
      addresses == 0 ? "" : ", and " + size_text(addresses) + " of addresses stay reserved";
  throw Error(GLAKE_MEMORY_OWED,
              "the driver refused to take back " + size_text(owed_bytes + kept) + " of " +
                  device_text(device_) + ": " + size_text(owed_bytes) +
                  " are owed (in no segment: glake.owed_bytes), " + size_text(kept) +
                  " stay mapped (in reserved bytes) and serve later requests" + reserved +
                  ". It said " + shared_.refusals.text() +
                  ". Nothing is lost: owed memory is used again before new memory is asked for. "
                  "Call glake_empty_cache() again to give it back");
}

void DeviceAllocator::owe_imported(Bytes memory, Bytes addresses, const std::string& said) {
  shared_.imported += memory;
  shared_.imported_addresses += addresses;
  std::lock_guard<FairMutex> slow(slow_);
  shared_.refusals.note(said);
}

void DeviceAllocator::pay_imported(Bytes memory, Bytes addresses) {
  shared_.imported -= memory;
  shared_.imported_addresses -= addresses;
}

// Everything idle, after all work where that may be waited for.
void DeviceAllocator::give_back_idle(HotGuard& hot) {
  drain_caches(true);
  drain_pending(Wait::kAllowed);
  const bool captures = clock_.any_capturing();
  trim_heaps(wait_for_work(hot) && !captures, hot);
}

void DeviceAllocator::claim_outside(int64_t bytes) {
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  HotGuard hot(hot_);
  if (bytes <= 0) {
    shared_.outside -= std::min(static_cast<Bytes>(-bytes), shared_.outside);
    return;
  }
  auto more = static_cast<Bytes>(bytes);
  Bytes before = shared_.outside;
  auto fits = [&] { return physical() + Granules::ceil(before + more) <= limit_; };
  if (!fits()) trim_contiguous(hot);
  if (!fits()) give_back_idle(hot);
  if (!fits()) {
    ++stats_.ooms;
    throw out_of_memory({round_up(more, kAlignment), more, 0}, {GLAKE_CONTIGUOUS_VMM, false, true},
                        hot);
  }
  shared_.outside = before + more;
}

// What the device's own heap and the pools nobody uses can give back.
void DeviceAllocator::trim_heaps(bool synced, HotGuard& hot) {
  for (DeviceAllocator* heap : heaps()) {
    if (heap->pool_ == nullptr || heap->idle()) heap->trim_all(synced, hot);
  }
  end_pools();
}

// Every view and granule that nobody holds and no work uses. A synchronisation just before covers
// work no ticket had room for.
void DeviceAllocator::trim_all(bool synced, HotGuard& hot) {
  if (paused() != nullptr) return trim_paused(synced, hot);
  trim_idle(synced, hot);
}

void DeviceAllocator::trim_idle(bool synced, HotGuard& hot) {
  thaw();
  if (captured_) return;
  drain_pending(Wait::kNo);
  drain_whole();
  std::vector<View*> all(views_.recent_first().begin(), views_.recent_first().end());
  for (View* view : all) {
    if (view->live != 0) continue;
    if (synced) view->tickets_full = false;
    evict(view, hot);
  }
  trim({~uint64_t{0}}, hot);
}

}  // namespace glake
