#include "memory/virtual_book.h"

namespace glake {

VirtualRange& VirtualBook::add(std::unique_ptr<VirtualRange> range) {
  VirtualRange& added = *range;
  ranges_.emplace(added.base(), std::move(range));
  return added;
}

VirtualRange* VirtualBook::find(Address base) const {
  auto found = ranges_.find(base);
  return found != ranges_.end() ? found->second.get() : nullptr;
}

VirtualRange* VirtualBook::around(Address at) const {
  auto after = ranges_.upper_bound(at);
  if (after == ranges_.begin()) return nullptr;
  VirtualRange* range = std::prev(after)->second.get();
  return range->contains(at) ? range : nullptr;
}

bool VirtualBook::leave(const Block* block) {
  auto more = more_.find(block);
  if (more == more_.end()) return true;
  if (--more->second == 0) more_.erase(more);
  return false;
}

uint64_t VirtualBook::pages_of(const Block* block) const {
  auto more = more_.find(block);
  return more != more_.end() ? more->second + 1 : 1;
}

uint64_t VirtualBook::backed() const {
  uint64_t sum = 0;
  for (const auto& [base, range] : ranges_) sum += range->backed_pages;
  return sum;
}

uint64_t VirtualBook::shared() const {
  uint64_t sum = 0;
  for (const auto& [block, more] : more_) sum += more;
  return sum;
}

uint64_t VirtualBook::idle() const {
  uint64_t sum = 0;
  for (const auto& [base, range] : ranges_) sum += range->mapped_pages - range->backed_pages;
  return sum;
}

}  // namespace glake
