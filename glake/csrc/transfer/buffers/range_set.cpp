#include "transfer/buffers/range_set.h"

#include <algorithm>

namespace glake::transfer {

void RangeSet::add(Range range) {
  auto at = std::lower_bound(ranges_.begin(), ranges_.end(), range,
                             [](const Range& a, const Range& b) { return a.begin < b.begin; });
  at = ranges_.insert(at, range);
  if (at != ranges_.begin() && std::prev(at)->end >= at->begin) {
    std::prev(at)->end = std::max(std::prev(at)->end, at->end);
    at = std::prev(ranges_.erase(at));
  }
  while (std::next(at) != ranges_.end() && std::next(at)->begin <= at->end) {
    at->end = std::max(at->end, std::next(at)->end);
    ranges_.erase(std::next(at));
  }
}

Bytes RangeSet::bytes() const {
  Bytes sum = 0;
  for (const Range& r : ranges_) sum += r.bytes();
  return sum;
}

}  // namespace glake::transfer
