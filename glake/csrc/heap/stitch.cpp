#include "heap/stitch.h"

#include <algorithm>

#include "heap/eviction.h"
#include "heap/extend.h"
#include "heap/growth.h"
#include "heap/pieces.h"

namespace glake {

Granules Stitch::collect(const Request& r, Granules want, Wait wait, std::vector<GranuleRun>& runs,
                         Tickets* pending) {
  Granules have{0};
  auto add = [&](Arena& arena, Address begin, Address end) {
    Address from = round_up(begin, kGranule);
    if (from >= end) return;
    uint64_t g = arena.granule_of(from);
    for (uint64_t last = g + (end - from) / kGranule; g < last && have < want;) {
      uint64_t n = 0, most = std::min(last - g, want.count - have.count);
      while (n < most && !heap_.granules.stamped(arena, g + n) &&
             heap_.granules.pins(arena, g + n) == 0)
        ++n;
      if (n != 0) runs.push_back({&arena, g, n, 0});
      have = have + Granules{n};
      g += n == most ? n : n + 1;
    }
  };
  for (Arena* arena : {heap_.large.get(), heap_.small.get()}) {
    // Extents without a whole granule are skipped. The search ends after the last one that has any.
    uint64_t left = arena->whole().count();
    for (Span* head = arena->largest();
         head != nullptr && head->extent >= kGranule && left != 0 && have < want;
         head = arena->next_smaller(head)) {
      Address first = round_up(head->begin, kGranule);
      Address last = round_down(head->begin + head->extent, kGranule);
      if (first >= last) continue;
      left -= (last - first) / kGranule;
      // Neighbouring spans that may be used now are one stretch.
      Address begin = head->begin, end = head->begin;
      for (Span* s = head;; s = s->next) {
        bool usable = heap_.rule.ordered(r.stream, s->tickets);
        if (!usable && wait != Wait::kNo && heap_.rule.may_wait()) {
          usable = wait == Wait::kAllowed || heap_.rule.can_have(r.stream, s->tickets);
          for (Ticket t : s->tickets) {
            if (usable && !heap_.rule.ordered(r.stream, t)) usable = pending->add(t);
          }
        }
        if (usable) end = s->end();
        if (!usable || s == head->mate) {
          add(*arena, begin, end);
          begin = end = s->end();
        }
        if (s == head->mate || !(have < want)) break;
      }
    }
  }
  return have;
}

// Collects `need` granules for r, or all that it may have. False: what is missing could not be
// created either.
bool Stitch::gather(const Request& r, Granules need, std::vector<GranuleRun>* runs,
                    Granules* have) {
  *have = collect(r, need, Wait::kNo, *runs, nullptr);
  Tickets pending;
  if (*have < need && device_.clock.count() > 1) {
    std::vector<GranuleRun> more;
    Granules all = collect(r, need, Wait::kAllowed, more, &pending);
    // Only `balanced` grows instead of waiting, and only where there is room.
    bool compact = device_.options.policy == PolicyKind::kCompact;
    if (!(all < need) || (compact && *have < all) || *have + heap_.room() < need) {
      runs->swap(more);
      *have = all;
    } else {
      pending.clear();
    }
  }
  if (*have < need && heap_.room() < need - *have) return false;
  if (heap_.rule.wait_for(r.stream, pending)) return true;
  // A captured stream cannot wait for some of this memory. There may be enough without it.
  runs->clear();
  pending.clear();
  *have = collect(r, need, Wait::kSure, *runs, &pending);
  if (*have < need && heap_.room() < need - *have) return false;
  return heap_.rule.wait_for(r.stream, pending);
}

// Adds runs of new granules.
bool Stitch::add_missing(const Request& r, Granules missing, std::vector<GranuleRun>* runs,
                         HotGuard& hot) {
  TakenGranules taken(heap_, r.stream);
  taken.take(*runs);
  return Growth(heap_).add_fresh(missing, *runs, taken, hot);
}

Found Stitch::stitch(const Request& r, HotGuard& hot) {
  Granules need = Granules::ceil(r.size);
  if (heap_.whole_free() + heap_.room() < need) return {};
  Eviction(heap_).make_room(need, hot);
  if (Found found = Extend(heap_).extend_view(r, hot)) return found;
  std::vector<GranuleRun> runs;
  Granules have;
  if (!gather(r, need, &runs, &have)) return {};
  if (have < need && device_.options.policy == PolicyKind::kCompact) {
    if (Found found = join(r, hot)) return found;
    // join() may have let go of hot. Then other threads may have taken what was found before.
    runs.clear();
    have = collect(r, need, Wait::kNo, runs, nullptr);
    if (have < need && heap_.room() < need - have) return {};
  }
  if (have < need) {
    if (have.count == 0) return Growth(heap_).grow(r, hot);
    if (!add_missing(r, need - have, &runs, hot)) return {};
  }
  return build_view(std::move(runs), 0, r, hot);
}

Found Stitch::granules(const Request& r, HotGuard& hot) {
  const Granules need = Granules::floor(r.size);
  if (heap_.whole_free() + heap_.room() < need) return {};
  heap_.granules.new_stamp();  // no granule is left out
  std::vector<GranuleRun> runs;
  Granules have;
  if (!gather(r, need, &runs, &have)) return {};
  if (have < need && !add_missing(r, need - have, &runs, hot)) return {};
  return Pieces(heap_).granules(runs, r);
}

// Joins whole granules between the free end of one granule and the free start of another. This
// takes one new granule fewer than a view of whole granules alone. It is done only where growing an
// arena would take more. Growing lets go of hot, so everything is searched again after it.
Found Stitch::join(const Request& r, HotGuard& hot, bool grows) {
  const Bytes rest = r.size % kGranule;
  const Granules need = Granules::floor(r.size);
  GranuleEdges::Pair pair;
  if (rest == 0 || need.count == 0 || !GranuleEdges(heap_, r).tightest(rest, &pair)) return {};
  std::vector<GranuleRun> runs;
  const Granules have = collect(r, need, Wait::kNo, runs, nullptr);
  if (have < need) {
    const Granules missing = need - have;
    if (!grows || !(missing < Growth(heap_).fewest(r))) return {};
    return Growth(heap_).add_free(missing, hot) ? join(r, hot, false) : Found{};
  }
  return build_joined(pair.head, std::move(runs), pair.tail, r, hot);
}

// Creates the whole granules that are missing. This lets go of hot, so everything is searched again
// after it.
Found Stitch::stitch_edges(const Request& r, HotGuard& hot, bool grows) {
  if (heap_.whole_free() + heap_.room() + Granules{2} < Granules::ceil(r.size)) return {};
  Eviction(heap_).make_room(Granules::ceil(r.size) + Granules{1}, hot);
  Granules missing{UINT64_MAX};
  GranuleEdges edges(heap_, r);
  for (const Edge& head : edges.widest_heads()) {
    // The head alone may be enough if it is in the small arena, which is not searched for large
    // blocks.
    Bytes rest = r.size - std::min(r.size, head.bytes);
    Granules need = Granules::ceil(rest);
    const Bytes tail_bytes = rest % kGranule;
    Edge tail{{}, kGranule};
    if (tail_bytes != 0) {
      edges.each_tail(head, [&](const Edge& edge) {
        if (edge.bytes >= tail_bytes && edge.bytes < tail.bytes) tail = edge;
      });
    }
    const bool partial_tail = tail.bytes < kGranule;
    if (partial_tail) need = need - Granules{1};
    std::vector<GranuleRun> runs;
    Tickets pending;
    const Granules have = collect(r, need, Wait::kSure, runs, &pending);
    if (have < need) {
      missing = std::min(missing, need - have);
      continue;
    }
    if (!heap_.rule.wait_for(r.stream, pending)) return {};
    return build_joined(head, std::move(runs), partial_tail ? tail : Edge{}, r, hot);
  }
  return grows && Growth(heap_).add_free(missing, hot) ? stitch_edges(r, hot, false) : Found{};
}

Found Stitch::build_joined(const Edge& head, std::vector<GranuleRun> runs, const Edge& tail,
                           const Request& r, HotGuard& hot) {
  if (head.bytes != 0) runs.insert(runs.begin(), head.run);
  if (tail.bytes != 0) runs.push_back(tail.run);
  ++device_.stats.edge_stitches;
  return build_view(std::move(runs), head.bytes != 0 ? kGranule - head.bytes : 0, r, hot);
}

Found Stitch::build_view(std::vector<GranuleRun> runs, Bytes offset, const Request& r,
                         HotGuard& hot) {
  auto owner = std::make_unique<View>();
  View* view = owner.get();
  Granules length = total(runs);
  view->capacity = length + length;  // addresses to extend it into
  view->base = heap_.view_space->take(view->capacity);
  heap_.views.add(std::move(owner));
  return map_behind(view, offset, std::move(runs), r, hot);
}

Found Stitch::map_behind(View* view, Bytes offset, std::vector<GranuleRun> runs, const Request& r,
                         HotGuard& hot) {
  Granules before = view->length;
  Granules added = total(runs);
  std::vector<Handle> handles;
  handles.reserve(added.count);
  for (GranuleRun& run : runs) {
    run.at = before.count + handles.size();
    for (uint64_t i = 0; i < run.count; ++i) {
      handles.push_back(heap_.granules.handle(*run.arena, run.granule + i));
    }
  }
  heap_.views.extend(view, runs);
  Pieces(heap_).add_aliases(runs, 1);
  Found found = Pieces(heap_).on_view(view, offset, r);
  Address at = view->base + before.bytes();
  hot.unlock();
  uint64_t mapped = 0;
  Status s;
  while (mapped < handles.size()) {
    s = device_.driver.map(at + mapped * kGranule, handles[mapped]);
    if (!s.ok()) break;
    ++mapped;
  }
  if (s.ok()) s = device_.driver.set_access(at, added.bytes(), device_.grants);
  hot.lock();
  if (s.ok()) {
    ++device_.stats.stitches;
    device_.stats.stitched_bytes += added.bytes();
    device_.shortage.mapped_view(Granules::ceil(r.size));
    return found;
  }
  abandon(view, before, found, r, mapped, hot);
  if (s.out_of_memory()) {
    const bool maps = mapped < handles.size();
    device_.shortage.refuse_view(
        Granules::ceil(r.size) - (maps ? added - Granules{mapped} : Granules{1}),
        (maps ? "cuMemMap: " : "cuMemSetAccess: ") + device_.driver.describe(s));
    return {};
  }
  throw Error(GLAKE_DRIVER_ERROR, "the driver refused to map " +
                                      counted(handles.size(), "granule") + " into a view on " +
                                      device_text(device_.number) + ": " +
                                      device_.driver.describe(s));
}

// Undoes a map_behind() that the driver refused after `mapped` granules. What the driver refuses to
// undo now is undone later.
void Stitch::abandon(View* view, Granules before, const Found& found, const Request& r,
                     uint64_t mapped, HotGuard& hot) {
  Pieces(heap_).use_edges(found.pieces, r.stream, -1);
  Pieces(heap_).show_stitched(found.pieces, found.ptr, r.size, false);
  Pieces(heap_).give(found.pieces, Tickets(device_.clock.stamp(r.stream)));
  --view->live;
  // Until the granules are unmapped, nothing may be mapped there, and the view may not be evicted.
  view->owed = true;
  std::vector<GranuleRun> added = heap_.views.truncate(view, before);
  hot.unlock();
  device_.deferred.defer({view->base + before.bytes(),
                          mapped * kGranule,
                          {},
                          [&heap = heap_, view, added] {  // this Stitch may be gone by then
                            HotGuard guard(heap.device.hot);
                            view->owed = false;
                            Pieces(heap).add_aliases(added, -1);
                            if (view->length.count == 0) {
                              heap.view_space->give(view->base, view->capacity);
                              heap.views.remove(view);
                            }
                          },
                          {}});
  hot.lock();
}

}  // namespace glake
