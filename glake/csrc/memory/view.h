// Views: ranges in which granules from anywhere lie side by side. Views stay mapped after use. They
// are found again by size, or by any stretch of free granules in them.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/tuning.h"
#include "memory/arena.h"
#include "memory/granule_pool.h"

namespace glake {

// Granules that are neighbours at home, and their place in the view.
struct GranuleRun {
  Arena* arena = nullptr;
  uint64_t granule = 0;  // index in the arena
  uint64_t count = 0;
  uint64_t at = 0;  // index in the view
};

inline Granules total(const std::vector<GranuleRun>& runs) {
  Granules sum{0};
  for (const GranuleRun& run : runs) sum = sum + Granules{run.count};
  return sum;
}

struct View {
  Address base = 0;
  Granules length;    // mapped
  Granules capacity;  // reserved: the view may be extended up to this
  std::vector<GranuleRun> runs;
  uint64_t live = 0;                 // blocks reached through it
  uint64_t last_used = 0;            // by the device's count of allocations
  Tickets tickets;                   // work that used its addresses
  bool tickets_full = false;         // `tickets` lacks some of that work, because it was full
  uint32_t pins = 0;                 // blocks reached through it that must stay mapped
  bool owed = false;                 // a part of a refused extension is still mapped behind it
  std::list<View*>::iterator place;  // its place in the index, the most recently used view first
  std::list<View*>::iterator same_long;  // its place among the views of its length
};

// A stretch of a view's bytes: [offset, offset + size) from its base.
struct Stretch {
  View* view = nullptr;
  Bytes offset = 0;
};

class ViewIndex {
 public:
  View* add(std::unique_ptr<View> view);
  std::unique_ptr<View> remove(View* view);
  // extend() appends runs, which must have their places set. truncate() removes what lies from
  // `length` on, and returns it.
  void extend(View* view, const std::vector<GranuleRun>& runs);
  std::vector<GranuleRun> truncate(View* view, Granules length);
  void touch(View* view, uint64_t tick);

  // The view that covers an address, or null.
  View* find(Address a) const;
  // Views of exactly n granules.
  const std::list<View*>& of_length(Granules n) const;
  const std::list<View*>& recent_first() const { return order_; }
  // Calls visit(view) for views, the most recently used ones first, until it returns true. It also
  // stops after Tuning::kViewsSearched views, or after kRunsSearched runs of these, because blocks
  // of random sizes leave ever more views.
  template <typename Visit>
  void search(Visit&& visit) const {
    size_t views = 0, runs = 0;
    for (View* view : order_) {
      if (views++ == Tuning::kViewsSearched || runs > Tuning::kRunsSearched) return;
      runs += view->runs.size();
      if (visit(view)) return;
    }
  }
  // The views used longest ago, the oldest first. It looks at Tuning::kViewsSearched views at most,
  // and leaves out views that blocks use now. These are moved to the front, so that later calls
  // need not pass over them.
  std::vector<View*> oldest();

  size_t count() const { return order_.size(); }
  Granules mapped() const { return {mapped_}; }

 private:
  void enter_length(View* view);
  void leave_length(View* view);
  std::list<View*> order_;
  std::map<Address, std::unique_ptr<View>> views_;  // by base
  std::unordered_map<uint64_t, std::list<View*>> by_length_;
  uint64_t mapped_ = 0;
};

// Calls visit(arena, address at home, bytes) for each run under a stretch of `size` bytes. If visit
// returns false, it stops and returns false.
template <typename Visit>
bool for_each_run(const View& view, Bytes offset, Bytes size, Visit&& visit) {
  uint64_t first = offset / kGranule;
  size_t i = 0;
  if (view.runs.size() > Tuning::kRunsScanned) {
    size_t low = 0, high = view.runs.size();
    while (high - low > 1) {
      size_t middle = (low + high) / 2;
      (view.runs[middle].at <= first ? low : high) = middle;
    }
    i = low;
  }
  Bytes left = size;
  for (; i < view.runs.size() && left != 0; ++i) {
    const GranuleRun& run = view.runs[i];
    Bytes run_begin = run.at * kGranule;
    Bytes run_end = run_begin + run.count * kGranule;
    if (run_end <= offset) continue;
    Bytes skip = offset > run_begin ? offset - run_begin : 0;
    Bytes here = std::min(left, run_end - run_begin - skip);
    if (!visit(*run.arena, run.arena->granule_at(run.granule) + skip, here)) return false;
    left -= here;
  }
  return left == 0;
}

// Neighbouring granules of a view that are wholly free.
struct FreeStretch {
  uint64_t start = 0, length = 0;  // in granules of the view
  bool ends = false;               // false: the granules behind it may be free too
  // The home of the busy granule behind it. `arena` is null at the view's end, or if that granule
  // is not known.
  Arena* arena = nullptr;
  uint64_t busy = 0;
};

// Calls visit(stretch) at the end of each of the view's runs, and before each busy stretch. Each
// call gives the free stretch that is known so far, whose length may be 0. Stops when visit returns
// true.
template <typename Visit>
void each_free_stretch(const View& view, Visit&& visit) {
  FreeStretch found;
  for (const GranuleRun& run : view.runs) {
    for (uint64_t i = 0; i < run.count;) {
      const uint64_t free = run.arena->whole().free_run(run.granule + i, run.count - i);
      if (found.length == 0) found.start = run.at + i;
      found.length += free;
      i += free;
      const bool at_busy = i < run.count;
      found.ends = at_busy || &run == &view.runs.back();
      found.arena = at_busy ? run.arena : nullptr;
      found.busy = run.granule + i;
      if (visit(std::as_const(found))) return;
      if (!at_busy) break;
      found.length = 0;
      i += run.arena->whole().busy_run(run.granule + i, run.count - i);
    }
  }
}

}  // namespace glake
