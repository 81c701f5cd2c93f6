#include "debug/filled_memory.h"

#include <algorithm>

namespace glake {

void FilledMemory::add(Address begin, const Stretch& stretch) {
  std::lock_guard<std::mutex> guard(mutex_);
  stretches_.emplace(begin, stretch);
}

FilledMemory::Stretches FilledMemory::cut(Address begin, Address end) {
  std::lock_guard<std::mutex> guard(mutex_);
  Stretches cut;
  auto it = stretches_.upper_bound(begin);
  if (it != stretches_.begin()) --it;
  while (it != stretches_.end() && it->first < end) {
    auto [a, f] = *it;
    if (f.end <= begin) {
      ++it;
      continue;
    }
    it = stretches_.erase(it);
    Address from = std::max(a, begin), to = std::min(f.end, end);
    if (a < from) stretches_.emplace(a, Stretch{from, f.block, f.offset});
    if (to < f.end) {
      stretches_.emplace(to, Stretch{f.end, f.block, f.offset + static_cast<int64_t>(to - a)});
    }
    cut.emplace_back(from, Stretch{to, f.block, f.offset + static_cast<int64_t>(from - a)});
  }
  return cut;
}

FilledMemory::Stretches FilledMemory::all() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return {stretches_.begin(), stretches_.end()};
}

HoldingPtr FilledMemory::freed_at(Address ptr) const {
  std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& [begin, stretch] : stretches_) {
    if (stretch.block->ptr == ptr) return stretch.block;
  }
  return nullptr;
}

}  // namespace glake
