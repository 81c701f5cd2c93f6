// Which other devices reach this one's memory.
#include <algorithm>

#include "heap/device_allocator.h"

namespace glake {

void DeviceAllocator::grant_peers() {
  for (int peer = 0; peer < driver_.device_count(); ++peer) {
    bool yes = false;
    if (peer != device_ && driver_.can_access_peer(peer, device_, &yes).ok() && yes) {
      granules_.grant(peer);
    }
  }
}

// Everything mapped becomes accessible from `peer` too, and all that is mapped later.
void DeviceAllocator::enable_peer(int peer) {
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  const std::vector<int>& now = granules_.grants();
  if (std::find(now.begin(), now.end(), peer) != now.end()) return;
  bool yes = false;
  Status s = driver_.can_access_peer(peer, device_, &yes);
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver does not say whether " + device_text(peer) +
                                        " reaches " + device_text(device_) + ": " +
                                        driver_.describe(s));
  }
  if (!yes) {
    throw Error(GLAKE_INVALID_DEVICE,
                device_text(peer) + " cannot reach the memory of " + device_text(device_));
  }
  std::vector<int> grants = now;
  grants.push_back(peer);
  std::vector<std::pair<Address, Bytes>> ranges;
  HotGuard hot(hot_);
  settle(hot);  // a half undone mapping is a hole that access cannot be set over
  if (!deferred_.empty()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver still refuses to undo an earlier call on " +
                                        device_text(device_) + "; try again");
  }
  for (DeviceAllocator* heap : heaps()) heap->mapped_ranges(&ranges);
  contiguous_.for_each([&](const Chunk& c) {
    if (c.kind == GLAKE_CONTIGUOUS_VMM) ranges.emplace_back(c.base, c.bytes);
  });
  hot.unlock();
  for (auto& [base, bytes] : ranges) {
    s = driver_.set_access(base, bytes, grants);
    if (!s.ok()) {
      throw Error(GLAKE_DRIVER_ERROR, "the driver refused " + device_text(peer) + " access to " +
                                          device_text(device_) +
                                          "'s memory: " + driver_.describe(s));
    }
  }
  granules_.grant(peer);
}

void DeviceAllocator::mapped_ranges(std::vector<std::pair<Address, Bytes>>* ranges) const {
  const bool gone = paused() != nullptr && paused()->state == PauseState::kPaused;
  if (gone) return;  // it is granted as it is mapped again
  for (const Arena* arena : {small_.get(), large_.get()}) {
    for (const Span* seg = arena->first_span(); seg != nullptr; seg = seg->next) {
      if (seg->state == SpanState::kAbsent) continue;
      if (!ranges->empty() && ranges->back().first + ranges->back().second == seg->begin) {
        ranges->back().second += seg->size;
      } else {
        ranges->emplace_back(seg->begin, seg->size);
      }
    }
  }
  for (const View* v : views_.recent_first()) ranges->emplace_back(v->base, v->length.bytes());
}

}  // namespace glake
