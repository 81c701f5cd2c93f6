#include "memory/contiguous_index.h"

namespace glake {

ContiguousIndex& ContiguousIndex::instance() {
  static auto* index = new ContiguousIndex;  // never destroyed: threads may outlive main
  return *index;
}

void ContiguousIndex::add(Allocation* allocation) {
  ContiguousIndex& index = instance();
  std::lock_guard<std::mutex> guard(index.mutex_);
  index.allocations_[allocation->base] = {allocation->bytes, allocation->block};
}

void ContiguousIndex::remove(Allocation* allocation) {
  ContiguousIndex& index = instance();
  std::lock_guard<std::mutex> guard(index.mutex_);
  index.allocations_.erase(allocation->base);
}

Block* ContiguousIndex::find(Address ptr, bool* inside) {
  ContiguousIndex& index = instance();
  std::lock_guard<std::mutex> guard(index.mutex_);
  auto after = index.allocations_.upper_bound(ptr);
  if (after == index.allocations_.begin()) return nullptr;
  const auto& [base, allocation] = *std::prev(after);
  *inside = ptr - base < allocation.first;
  return ptr == base ? allocation.second : nullptr;
}

Block* ContiguousIndex::around(Address ptr) {
  ContiguousIndex& index = instance();
  std::lock_guard<std::mutex> guard(index.mutex_);
  auto after = index.allocations_.upper_bound(ptr);
  if (after == index.allocations_.begin()) return nullptr;
  const auto& [base, allocation] = *std::prev(after);
  return ptr - base < allocation.first ? allocation.second : nullptr;
}

}  // namespace glake
