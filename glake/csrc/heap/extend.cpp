#include "heap/extend.h"

#include <algorithm>

#include "base/tuning.h"
#include "heap/eviction.h"
#include "heap/growth.h"
#include "heap/largest_fit.h"
#include "heap/pieces.h"
#include "heap/stitch.h"

namespace glake {

namespace {

// Calls visit(first granule, how many) for each stretch of wholly free granules in the view.
template <typename Visit>
void each_whole_stretch(const View& view, Visit&& visit) {
  each_free_stretch(view, [&](const FreeStretch& found) {
    if (found.ends && found.length != 0) visit(found.start, found.length);
    return false;
  });
}

// The view's granules [at, at + length).
std::vector<GranuleRun> part_of(const View& view, Granules at, Granules length) {
  std::vector<GranuleRun> part;
  for_each_run(view, at.bytes(), length.bytes(), [&](Arena& arena, Address a, Bytes bytes) {
    part.push_back({&arena, arena.granule_of(a), bytes / kGranule, 0});
    return true;
  });
  return part;
}

}  // namespace

// The place in a view where mapping the fewest granules makes room for r. It is behind one of the
// view's free stretches. What lies behind that stretch must be unmapped first. That is possible if
// nobody uses the view, and must cost less than it saves.
Extend::Reuse Extend::most_reuse(const Request& r, Granules need) {
  Reuse best;
  uint64_t most = 0;
  heap_.views.search([&](View* view) {
    ++device_.stats.views_walked;
    if (view->owed) return false;
    each_whole_stretch(*view, [&](uint64_t at, uint64_t free) {
      uint64_t length = std::min(free, need.count);
      at += free - length;  // the end of a longer stretch is enough
      uint64_t behind = length == need.count ? 0 : view->length.count - (at + length);
      uint64_t price = behind == 0 ? 0 : Tuning::kUnmapCall + behind / Tuning::kUnmapped;
      // The longest request that this place can serve.
      uint64_t serves = std::min(length * Tuning::kLeastReuse, view->capacity.count - at);
      if (serves < need.count) best.next = std::max(best.next, Granules{serves});
      if (serves < need.count || length <= most + price) return;
      if (behind != 0 && !Eviction(heap_).ask_idle(*view)) return;
      Request part{length * kGranule, 0, r.stream};
      if (!available_.stretch_ordered(*view, at * kGranule, part, nullptr)) return;
      best = {view, {at}, {length}, best.next};
      most = length - price;
    });
    return false;
  });
  return best;
}

Granules Extend::longest_reuse(const Request& r) {
  Granules longest{0};
  heap_.views.search([&](const View* view) {
    if (view->owed) return false;
    each_whole_stretch(*view, [&](uint64_t at, uint64_t free) {
      const Request one{kGranule, kGranule, r.stream};
      uint64_t length = 0;
      while (length < free) {
        const Bytes last = (at + free - length - 1) * kGranule;
        if (!available_.stretch_ordered(*view, last, one, nullptr)) break;
        ++length;
      }
      longest = std::max(longest, Granules{length});
    });
    return false;
  });
  return longest;
}

// Unmaps runs that were just taken off the view's end. If that is refused, they are put back.
bool Extend::unmap_behind(View* view, const std::vector<GranuleRun>& runs, HotGuard& hot) {
  if (runs.empty()) return true;
  Address at = view->base + view->length.bytes();
  hot.unlock();
  Status s = device_.driver.unmap(at, total(runs).bytes());
  hot.lock();
  if (!s.ok()) {
    heap_.views.extend(view, runs);
    return false;
  }
  Pieces(heap_).add_aliases(runs, -1);
  return true;
}

// How r is made behind a free stretch of a view without a wait, if the arenas may grow by `growth`.
Extend::Extension Extend::best_extension(const Request& r, Granules growth) {
  Granules need = Granules::ceil(r.size);
  Extension best;
  best.reuse = most_reuse(r, need);
  const auto& [view, at, reused, next] = best.reuse;
  if (view == nullptr) return best;
  // A view holds each granule once.
  heap_.granules.new_stamp();
  for (const GranuleRun& run : part_of(*view, {0}, at + reused)) {
    heap_.granules.stamp(*run.arena, run.granule, run.count);
  }
  const Granules rest = need - reused;
  const Granules have = Stitch(heap_).collect(r, rest, Wait::kNo, best.behind, nullptr);
  heap_.granules.new_stamp();
  // `compact` grows only if no free granule is left, and none in this view either.
  bool grows = device_.options.policy != PolicyKind::kCompact;
  best.fresh = rest - have;
  best.reach = reused + have + (grows ? growth : Granules{0});
  return best;
}

// Stitching makes requests that are at least as long, unless blocks are pinned. Pinned granules
// cannot be stitched, but a view may already have them side by side.
Granules Extend::most_extended(const Request& r, Granules growth, Granules least) {
  if (heap_.pins.granules() == 0) return {0};
  for (Granules need = heap_.whole_free() + growth; least < need;) {
    const Extension made = best_extension({need.bytes(), need.bytes(), r.stream}, growth);
    if (!(made.reach < need)) return need;
    // For lengths in between the same view would be taken.
    need = std::max(made.reach, made.reuse.next);
  }
  return {0};
}

Found Extend::extend_view(const Request& r, HotGuard& hot) {
  const Extension made = best_extension(r, heap_.room());
  if (made.reach < Granules::ceil(r.size)) return {};
  Bytes driver_free = 0;
  if (device_.shortage.full() && made.fresh.count != 0 &&
      LargestFit(heap_).growth(&driver_free).now < made.fresh)
    return {};
  auto [view, at, reused, next] = made.reuse;
  if (made.behind.empty() && made.fresh.count == 0)
    return Pieces(heap_).on_view(view, at.bytes(), r);
  std::vector<GranuleRun> runs = made.behind;
  std::vector<GranuleRun> cut = heap_.views.truncate(view, at + reused);
  if (made.fresh.count != 0 || !cut.empty()) {
    TakenGranules taken(heap_, r.stream);
    taken.take(part_of(*view, at, reused));
    taken.take(runs);
    if (!unmap_behind(view, cut, hot)) return {};
    if (!Growth(heap_).add_fresh(made.fresh, runs, taken, hot)) return {};
  }
  ++device_.stats.extensions;
  return Stitch(heap_).map_behind(view, at.bytes(), std::move(runs), r, hot);
}

}  // namespace glake
