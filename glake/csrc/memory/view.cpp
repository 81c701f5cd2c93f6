#include "memory/view.h"

#include <algorithm>

namespace glake {

View* ViewIndex::add(std::unique_ptr<View> view) {
  View* v = view.get();
  order_.push_front(v);
  v->place = order_.begin();
  enter_length(v);
  views_.emplace(v->base, std::move(view));
  return v;
}

std::unique_ptr<View> ViewIndex::remove(View* view) {
  order_.erase(view->place);
  leave_length(view);
  auto found = views_.find(view->base);
  std::unique_ptr<View> owner = std::move(found->second);
  views_.erase(found);
  return owner;
}

void ViewIndex::extend(View* view, const std::vector<GranuleRun>& runs) {
  leave_length(view);
  for (const GranuleRun& run : runs) {
    GranuleRun* last = view->runs.empty() ? nullptr : &view->runs.back();
    if (last != nullptr && last->arena == run.arena && last->granule + last->count == run.granule) {
      last->count += run.count;
    } else {
      view->runs.push_back(run);
    }
    view->length = view->length + Granules{run.count};
  }
  enter_length(view);
}

std::vector<GranuleRun> ViewIndex::truncate(View* view, Granules length) {
  leave_length(view);
  // The first run that loses granules.
  auto from = std::partition_point(
      view->runs.begin(), view->runs.end(),
      [length](const GranuleRun& run) { return run.at + run.count <= length.count; });
  std::vector<GranuleRun> off(from, view->runs.end());
  if (!off.empty() && off.front().at < length.count) {
    GranuleRun& first = off.front();
    uint64_t kept = length.count - first.at;
    first = {first.arena, first.granule + kept, first.count - kept, length.count};
    from->count = kept;
    ++from;
  }
  view->runs.erase(from, view->runs.end());
  view->length = std::min(view->length, length);
  enter_length(view);
  return off;
}

void ViewIndex::enter_length(View* view) {
  std::list<View*>& same = by_length_[view->length.count];
  view->same_long = same.insert(same.end(), view);
  mapped_ += view->length.count;
}

void ViewIndex::leave_length(View* view) {
  auto same = by_length_.find(view->length.count);
  same->second.erase(view->same_long);
  if (same->second.empty()) by_length_.erase(same);
  mapped_ -= view->length.count;
}

void ViewIndex::touch(View* view, uint64_t tick) {
  view->last_used = tick;
  order_.splice(order_.begin(), order_, view->place);
}

View* ViewIndex::find(Address a) const {
  auto after = views_.upper_bound(a);
  if (after == views_.begin()) return nullptr;
  View* view = std::prev(after)->second.get();
  return a - view->base < view->length.bytes() ? view : nullptr;
}

std::vector<View*> ViewIndex::oldest() {
  std::vector<View*> found;
  size_t looked_at = 0;
  for (auto at = order_.end(); at != order_.begin() && looked_at < Tuning::kViewsSearched;
       ++looked_at) {
    View* view = *--at;
    if (view->live == 0) {
      found.push_back(view);
      continue;
    }
    auto behind = std::next(at);
    order_.splice(order_.begin(), order_, at);
    at = behind;
  }
  return found;
}

const std::list<View*>& ViewIndex::of_length(Granules n) const {
  static const std::list<View*> none;
  auto found = by_length_.find(n.count);
  return found != by_length_.end() ? found->second : none;
}

}  // namespace glake
