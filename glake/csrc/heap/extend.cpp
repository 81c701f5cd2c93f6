// Stitching behind what a view has already, so that only what a request lacks is mapped. A view
// that neither blocks nor work use is cut first where that saves more than it costs. Runs under
// slow_.
#include <algorithm>

#include "base/tuning.h"
#include "heap/device_allocator.h"
#include "heap/taken_granules.h"

namespace glake {
namespace {

// Calls visit(first granule, how many) for each stretch of wholly free granules in the view.
template <typename Visit>
void each_free_stretch(const View& view, Visit&& visit) {
  uint64_t start = 0, length = 0;
  for (const Run& run : view.runs) {
    for (uint64_t i = 0; i < run.count;) {
      uint64_t free = run.arena->free_run(run.granule + i, run.count - i);
      if (length == 0) start = run.at + i;
      length += free;
      i += free;
      if (i == run.count) break;
      if (length != 0) visit(start, length);
      length = 0;
      i += run.arena->busy_run(run.granule + i, run.count - i);
    }
  }
  if (length != 0) visit(start, length);
}

// The view's granules [at, at + length).
std::vector<Run> part_of(const View& view, Granules at, Granules length) {
  std::vector<Run> part;
  for_each_run(view, at.bytes(), length.bytes(), [&](Arena& arena, Address a, Bytes bytes) {
    part.push_back({&arena, arena.granule_of(a), bytes / kGranule, 0});
    return true;
  });
  return part;
}

}  // namespace

// Where mapping the fewest granules makes room for r in a view: behind one of its free stretches.
// What lies behind that stretch must be unmapped first, which a view nobody uses allows, and which
// what it saves must be worth.
DeviceAllocator::Reuse DeviceAllocator::most_reuse(const Request& r, Granules need) {
  Reuse best;
  uint64_t most = 0;
  views_.search([&](View* view) {
    ++stats_.views_walked;
    if (view->owed) return false;
    each_free_stretch(*view, [&](uint64_t at, uint64_t free) {
      uint64_t length = std::min(free, need.count);
      at += free - length;  // of a longer one the end will do
      uint64_t behind = length == need.count ? 0 : view->length.count - (at + length);
      uint64_t price = behind == 0 ? 0 : Tuning::kUnmapCall + behind / Tuning::kUnmapped;
      // The longest request that this place can serve.
      uint64_t serves = std::min(length * Tuning::kLeastReuse, view->capacity.count - at);
      if (serves < need.count) best.next = std::max(best.next, Granules{serves});
      if (serves < need.count || length <= most + price) return;
      if (behind != 0 && !ask_idle(*view)) return;
      Request part{length * kGranule, 0, r.stream};
      if (!stretch_ordered(*view, at * kGranule, part, nullptr)) return;
      best = {view, {at}, {length}, best.next};
      most = length - price;
    });
    return false;
  });
  return best;
}

// The longest end of a view's free stretch that r's stream has without a wait: what extend_view()
// finds where it need map nothing.
Granules DeviceAllocator::longest_reuse(const Request& r) {
  Granules longest{0};
  views_.search([&](const View* view) {
    if (view->owed) return false;
    each_free_stretch(*view, [&](uint64_t at, uint64_t free) {
      const Request one{kGranule, kGranule, r.stream};
      uint64_t length = 0;
      while (length < free) {
        const Bytes last = (at + free - length - 1) * kGranule;
        if (!stretch_ordered(*view, last, one, nullptr)) break;
        ++length;
      }
      longest = std::max(longest, Granules{length});
    });
    return false;
  });
  return longest;
}

// Nobody uses the view, and no work does.
bool DeviceAllocator::idle(const View& view) const {
  bool held = view.live != 0 || view.pins != 0 || view.owed || captured_;
  return !held && !view.tickets_full && clock_.complete(view.tickets);
}

// The same, asking the driver whether that work is done.
bool DeviceAllocator::ask_idle(const View& view) {
  if (view.live == 0 && !captured_) {
    for (Ticket t : view.tickets) clock_.ask(t);
  }
  return idle(view);
}

// Unmaps the runs that have just been taken off the view's end. A refusal puts them back.
bool DeviceAllocator::unmap_behind(View* view, const std::vector<Run>& runs, HotGuard& hot) {
  if (runs.empty()) return true;
  Address at = view->base + view->length.bytes();
  hot.unlock();
  Status s = driver_.unmap(at, total(runs).bytes());
  hot.lock();
  if (!s.ok()) {
    views_.extend(view, runs);
    return false;
  }
  add_aliases(runs, -1);
  return true;
}

// How r is made behind a free stretch of a view without a wait, where the arenas may grow by so
// much.
DeviceAllocator::Extension DeviceAllocator::plan_extension(const Request& r, Granules growth) {
  Granules need = Granules::ceil(r.size);
  Extension plan;
  plan.reuse = most_reuse(r, need);
  const auto& [view, at, reused, next] = plan.reuse;
  if (view == nullptr) return plan;
  // A view holds each granule once.
  granules_.new_mark();
  for (const Run& run : part_of(*view, {0}, at + reused)) {
    granules_.mark(*run.arena, run.granule, run.count);
  }
  const Granules rest = need - reused;
  const Granules have = collect(r, rest, Wait::kNo, plan.behind, nullptr);
  granules_.new_mark();
  // `compact` grows only when no free granule is left, this view's own included.
  bool grows = options_.policy != PolicyKind::kCompact;
  plan.fresh = rest - have;
  plan.reach = reused + have + (grows ? growth : Granules{0});
  return plan;
}

// The longest request above `least` that extend_view() makes now; 0: none. Stitching has at least
// as much, but where blocks are pinned: a view has pinned granules side by side already.
Granules DeviceAllocator::most_extended(const Request& r, Granules growth, Granules least) {
  if (pins_.granules() == 0) return {0};
  for (Granules need = whole_free() + growth; least < need;) {
    const Extension plan = plan_extension({need.bytes(), need.bytes(), r.stream}, growth);
    if (!(plan.reach < need)) return need;
    // For what is between, the same view would be taken.
    need = std::max(plan.reach, plan.reuse.next);
  }
  return {0};
}

// r in a free stretch of a view and in more granules mapped behind it, when that needs no wait.
DeviceAllocator::Found DeviceAllocator::extend_view(const Request& r, HotGuard& hot) {
  const Extension plan = plan_extension(r, room());
  if (plan.reach < Granules::ceil(r.size)) return {};
  Bytes driver_free = 0;
  if (driver_full_ && plan.fresh.count != 0 && growth(&driver_free).now < plan.fresh) return {};
  auto [view, at, reused, next] = plan.reuse;
  if (plan.behind.empty() && plan.fresh.count == 0) return on_view(view, at.bytes(), r);
  std::vector<Run> runs = plan.behind;
  std::vector<Run> cut = views_.truncate(view, at + reused);
  if (plan.fresh.count != 0 || !cut.empty()) {
    TakenGranules taken(*this, r.stream);
    taken.take(part_of(*view, at, reused));
    taken.take(runs);
    if (!unmap_behind(view, cut, hot)) return {};
    if (!add_fresh(plan.fresh, runs, taken, hot)) return {};
  }
  ++stats_.extensions;
  return map_behind(view, at.bytes(), std::move(runs), r, hot);
}

}  // namespace glake
