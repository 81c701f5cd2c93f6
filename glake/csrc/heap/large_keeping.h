// Whether threads keep the large blocks that they free, as they keep small ones, so that the next
// request of the same size takes no lock of the device.
//
// Best fit does not see a block that is kept, nor PlacementHistory the request that takes it, and a
// step that repeats is placed better by both. So it is done only where neither matters: as many
// large requests as the longest step has followed none before them, every one of them fitted in
// what was mapped, and at least as much of the limit as is held is not used. What ends it: requests
// that are followed again, or one that nothing mapped fits once threads have given all back. (While
// threads contend for the lock they keep their large blocks in any case: HotLock.)
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/tuning.h"

namespace glake {

class LargeKeeping {
 public:
  // Asked by frees, without a lock.
  bool now() const { return now_.load(std::memory_order_relaxed); }

  // The rest under the device's lock; true if threads must give back what they kept. A large
  // request found a place that no step had before; has_room() says whether memory is plentiful.
  template <typename HasRoom>
  bool found_by_fit(HasRoom&& has_room) {
    if (fits_ < Tuning::kMostStep && ++fits_ < Tuning::kMostStep) return false;
    return set(has_room());
  }
  // One was followed. Some are by chance: it takes as many as the shortest step has.
  bool followed() {
    fits_ -= std::min(fits_, Tuning::kMostStep / Tuning::kLeastStep);
    return fits_ == 0 && set(false);
  }
  // Nothing fitted one.
  bool end() {
    fits_ = 0;
    return set(false);
  }

 private:
  // True if this ends it.
  bool set(bool now) {
    const bool before = this->now();
    if (now != before) now_.store(now, std::memory_order_relaxed);
    return before && !now;
  }

  uint64_t fits_ = 0;  // in a row, less what those that were followed cost
  std::atomic<bool> now_{false};
};

}  // namespace glake
