#include "heap/largest_fit.h"

#include <algorithm>

#include "heap/extend.h"
#include "heap/stitch.h"

namespace glake {

// What r's stream may have of the idle memory, by the rules of Search and Stitch, if the arenas may
// grow by `growth`. What other streams freed in a captured pool does not count. Pinned granules do
// not count for stitching.
LargestFit::Usable LargestFit::usable(const Request& r, Granules growth) {
  Usable found;
  std::vector<GranuleRun> runs;
  Tickets pending;
  heap_.granules.new_stamp();
  found.whole = Stitch(heap_).collect(r, heap_.whole_free(), Wait::kSure, runs, &pending);
  found.large = std::max({longest_stretch(*heap_.large, r), longest_in_views(r),
                          Extend(heap_).longest_reuse(r).bytes()});
  found.small = std::max(found.large, longest_stretch(*heap_.small, r));
  GranuleEdges edges(heap_, r);
  for (const GranuleEdges::Edge& head : edges.widest_heads()) {
    Bytes tail = 0;
    edges.each_tail(head,
                    [&](const GranuleEdges::Edge& edge) { tail = std::max(tail, edge.bytes); });
    found.edges = std::max(found.edges, head.bytes + tail);
  }
  if (growth.count == 0) return found;
  for (Span* s = heap_.large->first_absent(); s != nullptr; s = heap_.large->next_absent(s)) {
    bool before = s->prev != nullptr && s->prev->state == SpanState::kFree;
    const Span* head_of = before ? s->prev->mate : nullptr;
    bool ready =
        before && available_.edge_allows(*heap_.large, head_of->begin, head_of->extent, r.stream) &&
        available_.range_ordered(head_of, head_of->begin, head_of->extent, r.stream, nullptr);
    if (!ready) continue;
    found.grown = std::max(found.grown, head_of->extent + std::min(growth.bytes(), s->size));
  }
  return found;
}

// The longest block that fits at either end of a free extent.
Bytes LargestFit::longest_stretch(const Arena& arena, const Request& r) {
  Bytes longest = 0;
  auto consider = [&](Address begin, Address end) {
    if (begin >= end || !available_.edge_allows(arena, begin, end - begin, r.stream)) return;
    longest = std::max(longest, end - begin);
  };
  auto may = [&](const Span* s) { return heap_.rule.can_have(r.stream, s->tickets); };
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
    // A block may wait for other streams' work only at its beginning.
    auto ready = [&](Address from) {
      const Span* s = head;
      while (s->end() <= from) s = s->next;
      return available_.range_ordered(s, from, end - from, r.stream, nullptr);
    };
    consider(begin, low);
    if (high < end && ready(high)) consider(high, end);
    // The same without the granules at the ends, which view blocks of other streams may share.
    consider(begin, round_down(low, kGranule));
    Address inner = round_up(high, kGranule);
    if (inner < end && ready(inner)) consider(inner, end);
  }
  return longest;
}

// How many bytes r's stream can have of a granule's free start, which is `prefix` bytes long.
Bytes LargestFit::start_had(const Request& r, const Arena& arena, uint64_t g, Bytes prefix) {
  const Address begin = arena.granule_at(g);
  Address end = begin;
  const Span* s = arena.free_span_at(begin);
  for (; end < begin + prefix && heap_.rule.can_have(r.stream, s->tickets); s = s->next)
    end = s->end();
  return std::min(end - begin, prefix);
}

// The longest free stretch that a view already maps side by side: whole granules, and the free
// start of the granule behind them. This is the only way in which pinned granules serve, because
// they cannot be stitched.
Bytes LargestFit::longest_in_views(const Request& r) {
  Bytes longest = 0;
  heap_.views.search([&](const View* view) {
    Bytes stretch = 0;
    auto consider = [&](Bytes end, Bytes size) {
      if (size <= longest) return;
      Request part{size, size, r.stream};
      Tickets pending;
      bool ready =
          available_.stretch_ordered(*view, end - size, part, &pending) || !pending.empty();
      if (ready && heap_.rule.can_have(r.stream, pending)) longest = size;
    };
    // The start of a granule that is in use may end a block that begins at any granule before it.
    auto consider_all = [&](Bytes end, Bytes start, bool used) {
      for (Bytes before = stretch;; before -= kGranule) {
        consider(end, before + start);
        if (!used || before == 0 || before + start <= longest) return;
      }
    };
    for (const GranuleRun& run : view->runs) {
      for (uint64_t i = 0; i < run.count; ++i) {
        const Bytes at = (run.at + i) * kGranule;
        const Bytes prefix = run.arena->free_prefix(run.granule + i);
        const bool used = !run.arena->whole().has(run.granule + i);
        if (prefix != 0) consider_all(at + prefix, prefix, used);
        const Bytes had = prefix != 0 ? start_had(r, *run.arena, run.granule + i, prefix) : 0;
        if (had != 0 && had != prefix) consider_all(at + had, had, used);
        stretch = used ? 0 : stretch + kGranule;
      }
    }
    return false;
  });
  return longest;
}

// The largest block that r's stream could have of this heap's own memory and growth.
Bytes LargestFit::fits_here(const Request& r, Granules growth) {
  Usable mine = usable(r, growth);
  // Views longer than the driver maps do not count.
  Bytes most =
      device_.shortage.refused_view() ? device_.shortage.most_in_view().bytes() : UINT64_MAX;
  Bytes stitched = std::min((mine.whole + growth).bytes() + mine.edges, most);
  Bytes large = std::max({mine.large, mine.grown, growth.bytes(), stitched});
  const Granules extended = Extend(heap_).most_extended(r, growth, Granules::floor(large));
  large = std::max(large, std::min(extended.bytes(), most));
  if (large > kSmallLimit) return large;
  // One granule is enough for any small block.
  bool granule = growth.count != 0 || mine.whole.count != 0;
  return granule ? kSmallLimit : std::min(std::max(mine.small, large), kSmallLimit);
}

Bytes LargestFit::largest(const Request& r, Granules growth) {
  if (r.granules) return (usable(r, growth).whole + growth).bytes();
  Bytes most = fits_here(r, growth);
  auto blocks = [&](const Heap& heap) {
    for (const WholeBlock& w : heap.whole_blocks) {
      // A stream cannot wait for memory of a captured pool.
      if (heap_.rule.can_have(r.stream, w.tickets)) most = std::max(most, w.block->size);
    }
  };
  blocks(heap_);
  for (Heap* heap : device_.heaps.started()) {
    if (heap == &heap_ || !heap_.may_borrow() || !heap->lends()) continue;
    if (heap->rule.whole_only()) {
      blocks(*heap);
    } else {
      most = std::max(most, LargestFit(*heap).fits_here(r, growth));
    }
  }
  return round_down(most, heap_.rule.whole_only() ? kGranule : kAlignment);
}

// The largest contiguous block of a kind: a new one, or one that is cached or owed.
Bytes LargestFit::largest_allocation(int kind, StreamId stream, Granules growth) const {
  return std::max(growth.bytes(), device_.contiguous.largest_kept(kind, stream, device_.clock));
}

GrowthRoom LargestFit::growth(Bytes* driver_free) {
  GrowthRoom g{heap_.room(), heap_.room(), {0}, {0}, device_.memory.above_limit(), {0}, ""};
  Bytes total = 0;
  bool known = device_.driver.memory_info(driver_free, &total).ok();
  if (!known) *driver_free = 0;
  g.kept = device_.memory.kept_of(*driver_free);
  if (known) g.driver = Granules::floor(*driver_free) - g.kept + Granules{device_.deferred.idle()};
  const DriverShortage& shortage = device_.shortage;
  g.driver = shortage.gives(g.driver);
  g.withheld = shortage.withheld();
  if (shortage.refused_now() || g.withheld.count != 0) g.said = shortage.said();
  g.now = g.limit < g.driver ? g.limit : g.driver;
  return g;
}

// If the driver has refused a contiguous block, it is asked what it gives, and hot is let go
// meanwhile. It may have less memory than it reports, or less in one piece.
GrowthRoom LargestFit::allocation_growth(int kind, Granules below, Bytes* driver_free,
                                         HotGuard& hot) {
  GrowthRoom g{device_.memory.allocation_room(),         {0}, {0}, {0},
               device_.memory.allocations_above_limit(), {0}, ""};
  Bytes total = 0;
  const bool known = device_.driver.memory_info(driver_free, &total).ok();
  if (!known) *driver_free = 0;
  g.kept = device_.memory.kept_of(*driver_free);
  g.driver = Granules::floor(*driver_free) - g.kept;
  Granules has = g.driver;
  if (device_.shortage.refused_allocation(kind)) {
    const Granules most = std::min({g.limit, below, known ? g.driver : g.limit});
    hot.unlock();
    const Granules gives = device_.contiguous.probe(kind, most, device_.grants);
    hot.lock();
    // The driver has refused the request itself, or a shorter one.
    if (below < g.limit || gives < most) {
      has = gives;
      g.said = device_.contiguous.refused();
    }
  } else {
    has = device_.shortage.gives(g.driver);
    if (has < g.driver) g.said = device_.shortage.said();
  }
  g.withheld = g.driver - std::min(g.driver, has);
  g.driver = has;
  g.now = std::min(g.limit, g.driver);
  return g;
}

Bytes LargestFit::callers(const Request& r, const Asked& asked, const GrowthRoom& allocations) {
  if (asked.claim) return device_.memory.claimable();
  if (asked.kind != GLAKE_STITCHED && !asked.by_size)
    return largest_allocation(asked.kind, r.stream, allocations.now);
  Bytes driver_free = 0;
  Granules grows = growth(&driver_free).now;
  const Bytes from = heap_.contiguous_from();
  const Bytes allocation =
      from != 0 ? largest_allocation(device_.options.contiguous.kind, r.stream, allocations.now)
                : 0;
  if (from != 0 && allocation >= from) return allocation;
  // The driver may also refuse in granules what it refuses in one piece.
  if (from != 0 && !allocations.said.empty()) grows = std::min(grows, allocations.now);
  Bytes fits = largest(r, grows);
  fits -= std::min(fits, heap_.guard_bytes());
  return from == 0 ? fits : round_down(std::min(fits, from - 1), kAlignment);
}

}  // namespace glake
