#include "memory/view_space.h"

#include <sys/resource.h>

#include <algorithm>

namespace glake {

void ViewSpace::enter(Address base, Granules n) {
  free_.emplace(base, n);
  by_size_.emplace(n.count, base);
}

ViewSpace::Places::iterator ViewSpace::leave(Places::iterator place) {
  by_size_.erase({place->second.count, place->first});
  return free_.erase(place);
}

Address ViewSpace::take(Granules n) {
  auto best = by_size_.lower_bound({n.count, 0});
  if (best == by_size_.end()) {
    reservations_.push_back(std::make_unique<Reservation>(
        driver_, heap_, std::max(least_, round_up(n.bytes(), kRangeAlign)), kMiB));
    Reservation& r = *reservations_.back();
    enter(r.base(), Granules{r.size() / kGranule});
    best = by_size_.lower_bound({n.count, 0});
  }
  auto [count, base] = *best;
  table_of(base).prepare(base, n.bytes());
  leave(free_.find(base));
  if (count != n.count) enter(base + n.bytes(), Granules{count} - n);
  return base;
}

void ViewSpace::give(Address base, Granules n) {
  auto next = free_.lower_bound(base);
  // Places of two reservations are never merged, because their block tables differ.
  auto same = [](Address a, Address b) { return PointerMap::find(a) == PointerMap::find(b); };
  if (next != free_.end() && base + n.bytes() == next->first && same(base, next->first)) {
    n = n + next->second;
    next = leave(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second.bytes() == base && same(before->first, base)) {
      base = before->first;
      n = n + before->second;
      leave(before);
    }
  }
  enter(base, n);
}

Status ViewSpace::release() {
  while (!reservations_.empty()) {
    Reservation& r = *reservations_.back();
    Address base = r.base();
    Bytes size = r.size();
    Status s = r.release();
    if (!s.ok()) return s;
    for (auto at = free_.lower_bound(base); at != free_.end() && at->first < base + size;) {
      at = leave(at);
    }
    reservations_.pop_back();
  }
  return {};
}

}  // namespace glake
