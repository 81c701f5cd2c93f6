#include "transfer/call/live_ranges.h"

#include <algorithm>

namespace glake::transfer {
namespace {

constexpr size_t kMany = 16;  // entries, of which the copies may be done

}  // namespace

void LiveRanges::add(const Parts& parts, std::function<bool()> settled) {
  Entry entry{parts[0].dst, parts[0].dst, parts[0].src, parts[0].src, std::move(settled)};
  for (size_t i = 0; i < parts.count(); ++i) {
    const Part& part = parts[i];
    entry.dst = std::min(entry.dst, part.dst);
    entry.dst_end = std::max(entry.dst_end, part.dst + part.bytes);
    entry.src = std::min(entry.src, part.src);
    entry.src_end = std::max(entry.src_end, part.src + part.bytes);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (entries_.size() >= kMany) {
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
    const Entry& one = entries_[i++];
    used = used || (one.dst < end && begin < one.dst_end) || (one.src < end && begin < one.src_end);
  }
  if (entries_.empty()) allocator_.ask_before_free(false);
  return used;
}

void LiveRanges::close() {
  entries_.clear();
  allocator_.ask_before_free(false);
}

}  // namespace glake::transfer
