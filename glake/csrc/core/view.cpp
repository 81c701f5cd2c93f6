#include "core/view.h"

#include <algorithm>

namespace glake {

View* ViewIndex::add(std::unique_ptr<View> view) {
  View* v = view.get();
  order_.push_front(v);
  v->place = order_.begin();
  by_length_[v->length.count].push_back(v);
  mapped_ += v->length.count;
  views_.emplace(v->base, std::move(view));
  return v;
}

std::unique_ptr<View> ViewIndex::remove(View* view) {
  order_.erase(view->place);
  std::vector<View*>& same = by_length_[view->length.count];
  same.erase(std::find(same.begin(), same.end(), view));
  if (same.empty()) by_length_.erase(view->length.count);
  mapped_ -= view->length.count;
  auto found = views_.find(view->base);
  std::unique_ptr<View> owner = std::move(found->second);
  views_.erase(found);
  return owner;
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

const std::vector<View*>& ViewIndex::of_length(Granules n) const {
  static const std::vector<View*> none;
  auto found = by_length_.find(n.count);
  return found != by_length_.end() ? found->second : none;
}

}  // namespace glake
