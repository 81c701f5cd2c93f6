#include "heap/peers.h"

#include <algorithm>

#include "heap/mapping_turn.h"
#include "heap/virtual_ranges.h"
#include "memory/fair_mutex.h"

namespace glake {

void Peers::grant_all() {
  for (int peer = 0; peer < device_.driver.device_count(); ++peer) {
    bool yes = false;
    if (peer != device_.number && device_.driver.can_access_peer(peer, device_.number, &yes).ok() &&
        yes) {
      device_.grants.push_back(peer);
    }
  }
}

void Peers::enable(int peer) {
  MappingTurn turn(device_);
  const std::vector<int>& now = device_.grants;
  if (std::find(now.begin(), now.end(), peer) != now.end()) return;
  bool yes = false;
  Status s = device_.driver.can_access_peer(peer, device_.number, &yes);
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver does not say whether " + device_text(peer) +
                                        " reaches " + device_text(device_.number) + ": " +
                                        device_.driver.describe(s));
  }
  if (!yes) {
    throw Error(GLAKE_INVALID_DEVICE,
                device_text(peer) + " cannot reach the memory of " + device_text(device_.number));
  }
  std::vector<int> grants = now;
  grants.push_back(peer);
  std::vector<std::pair<Address, Bytes>> ranges;
  HotGuard hot(device_.hot);
  device_.settle(hot);  // a half-undone mapping is a hole, over which access cannot be set
  if (!device_.deferred.empty()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver still refuses to undo an earlier call on " +
                                        device_text(device_.number) + "; try again");
  }
  for (Heap* heap : device_.heaps.started()) mapped_ranges(*heap, &ranges);
  VirtualRanges(device_.heaps.own()).mapped_ranges(&ranges);
  device_.contiguous.for_each([&](const Allocation& c) {
    if (c.kind == GLAKE_CONTIGUOUS_VMM) ranges.emplace_back(c.base, c.bytes);
  });
  hot.unlock();
  for (auto& [base, bytes] : ranges) {
    s = device_.driver.set_access(base, bytes, grants);
    if (!s.ok()) {
      throw Error(GLAKE_DRIVER_ERROR, "the driver refused " + device_text(peer) + " access to " +
                                          device_text(device_.number) +
                                          "'s memory: " + device_.driver.describe(s));
    }
  }
  device_.grants.push_back(peer);
}

void Peers::mapped_ranges(const Heap& heap, std::vector<std::pair<Address, Bytes>>* ranges) {
  if (heap.is_paused()) return;  // access is granted when it is mapped again
  for (const Arena* arena : {heap.small.get(), heap.large.get()}) {
    for (const Span* seg = arena->first_span(); seg != nullptr; seg = seg->next) {
      if (seg->state == SpanState::kAbsent) continue;
      if (!ranges->empty() && ranges->back().first + ranges->back().second == seg->begin) {
        ranges->back().second += seg->size;
      } else {
        ranges->emplace_back(seg->begin, seg->size);
      }
    }
  }
  for (const View* v : heap.views.recent_first()) ranges->emplace_back(v->base, v->length.bytes());
}

std::vector<int> Peers::grants() {
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  return device_.grants;
}

}  // namespace glake
