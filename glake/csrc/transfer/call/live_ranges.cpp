#include "transfer/call/live_ranges.h"

#include <algorithm>

#include "base/transfer_tuning.h"

namespace glake::transfer {
void LiveRanges::add(const Parts& parts, std::function<bool()> settled) {
  Entry entry{parts, std::move(settled)};
  std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.size() >= TransferTuning::kLiveRanges) {
    auto over = [](const Entry& one) { return one.settled(); };
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(), over), entries_.end());
  }
  entries_.push_back(std::move(entry));
  allocator_.ask_before_free(true);
}

bool LiveRanges::use(Address begin, Address end) {
  std::lock_guard<std::mutex> lock(mutex_);
  bool used = false;
  for (size_t i = 0; i < entries_.size();) {
    if (entries_[i].settled()) {
      entries_[i] = std::move(entries_.back());
      entries_.pop_back();
      continue;
    }
    const Parts& parts = entries_[i++].parts;
    // Looks at each part, because other memory lies between the parts of one copy.
    for (size_t p = 0; !used && p < parts.count(); ++p) {
      const Part& part = parts[p];
      used = (part.dst < end && begin < part.dst + part.bytes) ||
             (part.src < end && begin < part.src + part.bytes);
    }
  }
  if (entries_.empty()) allocator_.ask_before_free(false);
  return used;
}

void LiveRanges::close() {
  entries_.clear();
  allocator_.ask_before_free(false);
}

}  // namespace glake::transfer
