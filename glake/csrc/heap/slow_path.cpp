// What a request tries when nothing mapped fits, in the order docs/design.md gives ("A request").
// Runs under slow_; hot_ is let go around every mapping call.
#include <algorithm>

#include "base/tuning.h"
#include "heap/device_allocator.h"
#include "watch/watch.h"

namespace glake {

// What counts against the limit. What is owed to the driver is used first, and held already.
Granules DeviceAllocator::under_limit() const {
  return physical() - granules_.idle_deferred() + Granules::ceil(shared_.outside);
}

// By how much the arenas may grow; a region's also within its budget.
Granules DeviceAllocator::device_room() const {
  return under_limit() < limit_ ? limit_ - under_limit() : Granules{0};
}

// So much is held beyond a limit that was lowered.
Granules DeviceAllocator::above_limit() const {
  return limit_ < under_limit() ? under_limit() - limit_ : Granules{0};
}

Block* DeviceAllocator::allocate_slowly(Request r, StreamHandle stream, HotGuard& hot) {
  if (Found found = slow(r, hot)) return make_block(r, found, stream);
  if (Block* b = borrow(r, stream, hot)) return b;
  ++stats_.ooms;
  throw out_of_memory(r, {}, hot);
}

DeviceAllocator::Found DeviceAllocator::slow(const Request& r, HotGuard& hot) {
  settle(hot, Use::kAgain);
  shared_.refused_now = false;
  drain_caches(false);
  if (!pending_frees_.empty()) {
    ask_all(r);
    drain_pending(options_.policy == PolicyKind::kCompact ? Wait::kAllowed : Wait::kNo);
  }
  if (Found found = hit(r)) return found;
  if (Found found = slow_sized(r, hot)) return found;
  if (trim_contiguous(hot)) {
    if (Found found = slow_sized(r, hot)) return found;
  }
  ++stats_.alloc_retries;
  if (reclaim_elsewhere(r, hot)) {
    if (Found found = slow_sized(r, hot)) return found;
  }
  if (Found found = last_resort(r, hot)) return found;
  if (wait_for_work(hot)) {
    if (Found found = last_resort(r, hot)) return found;
    if (reclaim_elsewhere(r, hot)) {
      if (Found found = slow_sized(r, hot)) return found;
      if (Found found = last_resort(r, hot)) return found;
    }
  }
  // Growth that the driver refused half-way, and then to undo, is still mapped: it serves this
  // request as it would the next.
  if (deferred_.empty()) return {};
  settle(hot, Use::kAgain);
  return last_resort(r, hot);
}

// What is known of every stream decides where memory is stitched from.
void DeviceAllocator::ask_all(const Request& r) {
  if (clock_.count() == 1) return;
  clock_.ask_idle(r.stream);
  clock_.poll();
}

DeviceAllocator::Found DeviceAllocator::slow_small(const Request& r, HotGuard& hot) {
  bool may_grow = !driver_full_;
  if (options_.policy == PolicyKind::kBalanced && may_grow) {
    if (Found found = grow_small(r, hot)) return found;
  }
  if (Found found = fit(*small_, r, Wait::kAllowed)) return found;
  ask_all(r);
  drain_caches(true);
  if (Found found = fit(*small_, r, Wait::kAllowed)) return found;
  if (options_.policy == PolicyKind::kCompact && may_grow) {
    if (Found found = grow_small(r, hot)) return found;
  }
  if (Found found = fit(*large_, r, Wait::kAllowed)) return found;
  if (Found found = grow_small(r, hot)) return found;
  // A private pool's small arena may be full of blocks.
  return small_->first_absent() == nullptr ? grow(r, hot) : Found{};
}

DeviceAllocator::Found DeviceAllocator::slow_large(const Request& r, HotGuard& hot) {
  bool grows = options_.policy == PolicyKind::kBalanced && !driver_full_;
  Bytes live = static_cast<Bytes>(stats_.allocated_bytes.all.current) + r.size;
  most_live_ = std::max(most_live_, live);
  bool hoards = physical().bytes() > most_live_ + most_live_ / Tuning::kHoard;
  if (grows && !hoards) {
    if (Found found = grow(r, hot)) return found;
  }
  if (clock_.count() > 1) {
    if (Found found = fit(*large_, r, Wait::kAllowed)) return found;
    ask_all(r);
    if (Found found = idle_view(r, Wait::kAllowed)) return found;
  }
  if (grows && hoards && whole_free() < Granules::ceil(r.size)) {
    if (Found found = grow(r, hot)) return found;
  }
  if (Found found = run_in_view(r, Wait::kNo)) return found;
  if (clock_.count() > 1) {
    if (Found found = run_in_view(r, Wait::kAllowed)) return found;
  }
  return stitch(r, hot);
}

// What caches and record_stream hold back, then granules shared at their edges.
DeviceAllocator::Found DeviceAllocator::last_resort(const Request& r, HotGuard& hot) {
  drain_caches(true);
  drain_pending(Wait::kAllowed);
  if (!captured_) drain_whole();  // blocks that were to stay whole, had there been memory
  if (Found found = fit(home_of(r), r, Wait::kAllowed)) return found;
  if (r.small()) {
    if (Found found = fit(*large_, r, Wait::kAllowed)) return found;
  }
  if (Found found = run_in_view(r, Wait::kAllowed)) return found;
  if (!r.small()) {
    if (Found found = stitch(r, hot)) return found;
    if (Found found = grow(r, hot)) return found;
  }
  return stitch_edges(r, hot);
}

// Puts granules behind a claimed absent span. False if the driver has no more; throws on others.
bool DeviceAllocator::back(Arena& arena, Span* claimed, HotGuard& hot) {
  Granules n = Granules::floor(claimed->size);
  try {
    PointerMap::find(claimed->begin)->prepare(claimed->begin, n.bytes());
  } catch (...) {
    arena.disclaim(claimed);
    throw;
  }
  hot.unlock();
  auto settled = [this, &arena, claimed] {
    HotGuard guard(hot_);
    arena.disclaim(claimed);
  };
  auto kept = [this, &arena, claimed](Granules first) {
    HotGuard guard(hot_);
    keep_backed(arena, claimed, first);
  };
  Status s = granules_.back(arena, claimed->begin, n, settled, kept);
  hot.lock();
  if (s.ok()) {
    count_backed(arena, claimed->begin, n);
    // More than it had: the last refusal tells no more.
    if (shared_.had < n) shared_.withheld = {0};
    shared_.had = n < shared_.had ? shared_.had - n : Granules{0};
    return true;
  }
  // Undone: `settled` above has run, or runs when the deferred release is done.
  if (s.out_of_memory()) {
    note_refusal();
    return false;
  }
  throw Error(GLAKE_DRIVER_ERROR, "the driver refused to add " + counted(n.count, "granule") +
                                      " on " + device_text(device_) + ": " + driver_.describe(s));
}

// What the driver reports free but for the headroom, and what it is owed; 0 if it does not say.
Granules DeviceAllocator::driver_has() {
  Bytes free = 0, total = 0;
  if (!driver_.memory_info(&free, &total).ok()) return {0};
  return Granules::floor(free) - kept_of(free) + granules_.idle_deferred();
}

// It holds until the driver has taken memory back: so much it would not give, whatever it reports.
void DeviceAllocator::note_refusal() {
  const Granules reported = driver_has();
  Granules had = granules_.had();
  Granules withheld = had < reported ? reported - had : Granules{0};
  if (driver_full_ && granules_.had_at_most() && withheld < shared_.withheld) {
    withheld = shared_.withheld;  // fewer were refused before
    had = withheld < reported ? reported - withheld : Granules{0};
  }
  shared_.had = had;
  shared_.withheld = withheld;
  shared_.refusal = granules_.refused();
  shared_.refused_now = true;
  driver_full_ = true;
}

// The driver has taken so much back: it has that besides what it had when it refused.
void DeviceAllocator::forget_refusals(Granules given) {
  driver_full_ = false;
  shared_.had = shared_.had + given;
  shared_.stitch_refusal.clear();
}

void DeviceAllocator::count_backed(const Arena& arena, Address begin, Granules n) {
  bool small = &arena == small_.get();
  stats_.reserved_bytes.add(small, static_cast<int64_t>(n.bytes()));
  ++stats_.growths;
  Watch::event(GLAKE_SEGMENT_MAP, device_, begin, n.bytes());
}

// The first granules of a claimed span are there to stay; the rest is absent again.
void DeviceAllocator::keep_backed(Arena& arena, Span* claimed, Granules first) {
  Address begin = claimed->begin;
  arena.disclaim(claimed);
  Span* absent = arena.first_absent();
  while (begin < absent->begin || begin >= absent->end()) absent = arena.next_absent(absent);
  count_backed(arena, begin, first);
  arena.give(arena.claim(absent, begin, first.bytes()), Tickets{}, completion());
}

DeviceAllocator::Found DeviceAllocator::grow_small(const Request& r, HotGuard& hot) {
  if (room().count == 0) return {};
  for (Span* s = small_->first_absent(); s != nullptr; s = small_->next_absent(s)) {
    Span* claimed = small_->claim(s, s->begin, kGranule);
    if (!back(*small_, claimed, hot)) return {};
    small_->give(claimed, Tickets{}, completion());
    return fit(*small_, r, Wait::kAllowed);
  }
  return {};
}

// Extends the free extent that needs the fewest new granules, most often the arena's end.
DeviceAllocator::Found DeviceAllocator::grow(const Request& r, HotGuard& hot) {
  Span* best = nullptr;
  Granules fewest = room();
  for (Span* s = large_->first_absent(); s != nullptr; s = large_->next_absent(s)) {
    Bytes before = 0;
    if (s->prev != nullptr && s->prev->state == SpanState::kFree) {
      Span* head = s->prev->mate;
      bool ready =
          clock_.count() == 1 || (edge_allows(*large_, head->begin, r.size, r.stream) &&
                                  range_ordered(head, head->begin, r.size, r.stream, nullptr));
      if (ready) before = head->extent;
    }
    Granules need = Granules::ceil(r.size > before ? r.size - before : 0);
    if (s->size < need.bytes() || fewest < need) continue;
    if (best != nullptr && (need == fewest && s->begin > best->begin)) continue;
    best = s;
    fewest = need;
  }
  if (best == nullptr || fewest.count == 0) return {};
  Span* claimed = large_->claim(best, best->begin, fewest.bytes());
  if (!back(*large_, claimed, hot)) return {};
  large_->give(claimed, Tickets{}, completion());
  return fit(*large_, r, Wait::kAllowed);
}

}  // namespace glake
