// The largest request that would succeed now, as an out-of-memory error names it. What search.cpp,
// stitch.cpp, slow_path.cpp, pools.cpp and escape.cpp would find, without taking it: where those
// change, this changes with them (largest_fit_test holds them together).
#include <algorithm>

#include "heap/device_allocator.h"

namespace glake {

// What r's stream may have of the idle memory, by the rules of search.cpp and stitch.cpp, when the
// arenas may grow by so much. A captured pool keeps what other streams freed; pinned granules are
// out of stitching.
DeviceAllocator::Usable DeviceAllocator::usable(const Request& r, Granules growth) {
  Usable found;
  std::vector<Run> runs;
  Tickets pending;
  granules_.new_mark();
  found.whole = collect(r, whole_free(), Wait::kSure, runs, &pending);
  found.large =
      std::max({longest_stretch(*large_, r), longest_in_views(r), longest_reuse(r).bytes()});
  found.small = std::max(found.large, longest_stretch(*small_, r));
  for (const Edge& head : widest_heads(r)) {
    Bytes tail = 0;
    each_tail(r, head, [&](const Edge& edge) { tail = std::max(tail, edge.bytes); });
    found.edges = std::max(found.edges, head.bytes + tail);
  }
  if (growth.count == 0) return found;
  for (Span* s = large_->first_absent(); s != nullptr; s = large_->next_absent(s)) {
    bool before = s->prev != nullptr && s->prev->state == SpanState::kFree;
    const Span* head_of = before ? s->prev->mate : nullptr;
    bool ready = before && edge_allows(*large_, head_of->begin, head_of->extent, r.stream) &&
                 range_ordered(head_of, head_of->begin, head_of->extent, r.stream, nullptr);
    if (!ready) continue;
    found.grown = std::max(found.grown, head_of->extent + std::min(growth.bytes(), s->size));
  }
  return found;
}

// The longest block that fits at either end of a free extent.
Bytes DeviceAllocator::longest_stretch(const Arena& arena, const Request& r) {
  Bytes longest = 0;
  auto consider = [&](Address begin, Address end) {
    if (begin >= end || !edge_allows(arena, begin, end - begin, r.stream)) return;
    longest = std::max(longest, end - begin);
  };
  auto may = [&](const Span* s) { return can_have(r.stream, s->tickets); };
  for (const Span* head = arena.best_fit(kAlignment); head != nullptr;
       head = arena.next_fit(head)) {
    Address begin = head->begin, low = begin, end = begin + head->extent, high = end;
    for (const Span* s = head; low == s->begin && may(s); s = s->next) {
      low = s->end();
      if (s == head->mate) break;
    }
    for (const Span* s = head->mate; high == s->end() && may(s); s = s->prev) {
      high = s->begin;
      if (s == head) break;
    }
    // Only at its beginning may a block wait for other streams' work.
    auto ready = [&](Address from) {
      const Span* s = head;
      while (s->end() <= from) s = s->next;
      return range_ordered(s, from, end - from, r.stream, nullptr);
    };
    consider(begin, low);
    if (high < end && ready(high)) consider(high, end);
    // Without the granule at an end, which a view's block of another stream may share.
    consider(begin, round_down(low, kGranule));
    Address inner = round_up(high, kGranule);
    if (inner < end && ready(inner)) consider(inner, end);
  }
  return longest;
}

// How much of a granule's free start, of `prefix` bytes, r's stream can have.
Bytes DeviceAllocator::start_had(const Request& r, const Arena& arena, uint64_t g, Bytes prefix) {
  const Address begin = arena.granule_at(g);
  Address end = begin;
  const Span* s = arena.free_span_at(begin);
  for (; end < begin + prefix && can_have(r.stream, s->tickets); s = s->next) end = s->end();
  return std::min(end - begin, prefix);
}

// The longest free stretch of whole granules that a view has side by side already, with the free
// start of the granule behind it: pinned ones are out of stitching, and serve only so.
Bytes DeviceAllocator::longest_in_views(const Request& r) {
  Bytes longest = 0;
  views_.search([&](const View* view) {
    Bytes stretch = 0;
    auto consider = [&](Bytes end, Bytes size) {
      if (size <= longest) return;
      Request part{size, size, r.stream};
      Tickets pending;
      bool ready = stretch_ordered(*view, end - size, part, &pending) || !pending.empty();
      if (ready && can_have(r.stream, pending)) longest = size;
    };
    // The start of a granule that is held may end a block that begins at any granule before it.
    auto consider_all = [&](Bytes end, Bytes start, bool held) {
      for (Bytes before = stretch;; before -= kGranule) {
        consider(end, before + start);
        if (!held || before == 0 || before + start <= longest) return;
      }
    };
    for (const Run& run : view->runs) {
      for (uint64_t i = 0; i < run.count; ++i) {
        const Bytes at = (run.at + i) * kGranule;
        const Bytes prefix = run.arena->free_prefix(run.granule + i);
        const bool held = !run.arena->whole_free(run.granule + i);
        if (prefix != 0) consider_all(at + prefix, prefix, held);
        const Bytes had = prefix != 0 ? start_had(r, *run.arena, run.granule + i, prefix) : 0;
        if (had != 0 && had != prefix) consider_all(at + had, had, held);
        stretch = held ? 0 : stretch + kGranule;
      }
    }
    return false;
  });
  return longest;
}

// The largest block that r's stream could have of this heap's own memory and growth.
Bytes DeviceAllocator::fits_here(const Request& r, Granules growth) {
  Usable mine = usable(r, growth);
  // Views that the driver refused to map are no fit.
  Bytes most = shared_.stitch_refusal.empty() ? UINT64_MAX : shared_.stitch_most.bytes();
  Bytes stitched = std::min((mine.whole + growth).bytes() + mine.edges, most);
  Bytes large = std::max({mine.large, mine.grown, growth.bytes(), stitched});
  const Granules extended = most_extended(r, growth, Granules::floor(large));
  large = std::max(large, std::min(extended.bytes(), most));
  if (large > kSmallLimit) return large;
  // A small block's rules: one granule is enough.
  bool granule = growth.count != 0 || mine.whole.count != 0;
  return granule ? kSmallLimit : std::min(std::max(mine.small, large), kSmallLimit);
}

// The same of all heaps: what r's own has, and what others lend.
Bytes DeviceAllocator::largest_fit(const Request& r, Granules growth) {
  Bytes most = fits_here(r, growth);
  auto blocks = [&](const Pool& pool) {
    for (const Whole& w : pool.whole) {
      // A captured pool waits for nobody.
      if (can_have(r.stream, w.tickets)) most = std::max(most, w.block->size);
    }
  };
  if (pool_ != nullptr) blocks(*pool_);
  for (DeviceAllocator* heap : heaps()) {
    bool lends = heap != this && heap->pool_ != nullptr && !captured_ && !heap->captured_ &&
                 heap->paused() == nullptr && (heap->pool_->flags & GLAKE_POOL_USE_ON_OOM) != 0;
    if (!lends) continue;
    if (heap->pool_->whole_only()) {
      blocks(*heap->pool_);
    } else {
      most = std::max(most, heap->fits_here(r, growth));
    }
  }
  return round_down(most, pool_ != nullptr && pool_->whole_only() ? kGranule : kAlignment);
}

// The largest contiguous block of a kind: a new one, or one that is kept because it is pinned or
// owed.
Bytes DeviceAllocator::largest_chunk(int kind, StreamId stream, Granules growth) const {
  return std::max(growth.bytes(), contiguous_.largest_kept(kind, stream, clock_));
}

// What headroom leaves to others of so much free memory.
Granules DeviceAllocator::kept_of(Bytes driver_free) const {
  return std::min(Granules::ceil(headroom()), Granules::floor(driver_free));
}

// By how much the arenas could grow under the limit (`limit`), and as far as the driver has memory
// (`driver`): known when it has just refused, else as it reports, less what it refused before.
DeviceAllocator::Growth DeviceAllocator::growth(Bytes* driver_free) {
  Growth g{room(), room(), {0}, {0}, above_limit(), {0}, ""};
  Bytes total = 0;
  bool known = driver_.memory_info(driver_free, &total).ok();
  if (!known) *driver_free = 0;
  g.kept = kept_of(*driver_free);
  if (known) g.driver = Granules::floor(*driver_free) - g.kept + granules_.idle_deferred();
  if (shared_.refused_now) {
    g.driver = g.driver < shared_.had ? g.driver : shared_.had;
  } else if (driver_full_) {
    g.driver = shared_.withheld < g.driver && known ? g.driver - shared_.withheld : Granules{0};
  }
  if (driver_full_) g.withheld = shared_.withheld;
  if (shared_.refused_now || g.withheld.count != 0) g.said = shared_.refusal;
  g.now = g.limit < g.driver ? g.limit : g.driver;
  return g;
}

// The same for a contiguous block, which takes nothing that is owed and no granule that is held, of
// at most `below`. Once the driver has refused one it is asked, hot_ let go: it may have less than
// it reports, or less of it in one piece.
DeviceAllocator::Growth DeviceAllocator::chunk_growth(int kind, Granules below, Bytes* driver_free,
                                                      HotGuard& hot) {
  Growth g{chunk_room(), {0}, {0}, {0}, chunks_above_limit(), {0}, ""};
  Bytes total = 0;
  const bool known = driver_.memory_info(driver_free, &total).ok();
  if (!known) *driver_free = 0;
  g.kept = kept_of(*driver_free);
  g.driver = Granules::floor(*driver_free) - g.kept;
  Granules has = g.driver;
  if (shared_.chunk_refused[ContiguousPool::number(kind)]) {
    const Granules most = std::min({g.limit, below, known ? g.driver : g.limit});
    hot.unlock();
    const Granules gives = contiguous_.probe(kind, most, granules_.grants());
    hot.lock();
    // The request itself was refused, or a shorter one.
    if (below < g.limit || gives < most) {
      has = gives;
      g.said = contiguous_.refused();
    }
  } else if (shared_.refused_now || driver_full_) {
    // A granule was refused, whatever the report says.
    has = shared_.refused_now ? shared_.had : g.driver - std::min(g.driver, shared_.withheld);
    has = std::min(has, g.driver);
    if (has < g.driver) g.said = shared_.refusal;
  }
  g.withheld = g.driver - std::min(g.driver, has);
  g.driver = has;
  g.now = std::min(g.limit, g.driver);
  return g;
}

// The largest request of the caller's that would succeed, of all its sizes: where blocks from a
// size on are contiguous, others than this one's kind may fit.
Bytes DeviceAllocator::callers_fit(const Request& r, const Asked& asked, const Growth& chunks) {
  if (asked.claim) {
    const Bytes room = physical() < limit_ ? (limit_ - physical()).bytes() : 0;
    return room - std::min(room, shared_.outside);
  }
  if (asked.kind != GLAKE_STITCHED && !asked.by_size)
    return largest_chunk(asked.kind, r.stream, chunks.now);
  Bytes driver_free = 0;
  Granules grows = growth(&driver_free).now;
  const Bytes from = pool_ == nullptr ? options_.contiguous_from : 0;
  const Bytes chunk = from != 0 ? largest_chunk(options_.contiguous_kind, r.stream, chunks.now) : 0;
  if (from != 0 && chunk >= from) return chunk;
  // What it refuses in one piece it may refuse in granules.
  if (from != 0 && !chunks.said.empty()) grows = std::min(grows, chunks.now);
  Bytes fits = largest_fit(r, grows);
  if (pool_ != nullptr) return fits;
  const Bytes guards = debug_hooks() != nullptr ? debug_hooks()->overhead() : 0;
  fits -= std::min(fits, guards);
  return from == 0 ? fits : round_down(std::min(fits, from - 1), kAlignment);
}

}  // namespace glake
