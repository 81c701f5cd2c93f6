// Whether threads keep the large blocks that they free, as they keep small ones, so that the next
// request of the same size takes no lock of the device.
//
// A block that is kept is not seen by best fit and in no step's sequence, and a step that repeats is
// placed better by both. So it is done only where neither says much: large requests, as many as
// PlacementHistory remembers, followed none of it, every one of them fitted in what was mapped, and
// at least as much of the limit as is held has not been needed. The first request that is followed
// again, or that nothing mapped fits, ends it. (While threads contend for the lock they keep their
// large blocks in any case: HotLock.)
#pragma once

#include <atomic>
#include <cstdint>

#include "base/tuning.h"

namespace glake {

class LargeKeeping {
 public:
  // Asked by frees, without a lock.
  bool now() const { return now_.load(std::memory_order_relaxed); }

  // The rest under the device's lock. A large request found a place that no step had before;
  // has_room() says whether memory is plentiful.
  template <typename HasRoom>
  void found_by_fit(HasRoom&& has_room) {
    if (fits_ < Tuning::kRemembered && ++fits_ < Tuning::kRemembered) return;
    const bool plenty = has_room();
    if (plenty != now()) now_.store(plenty, std::memory_order_relaxed);
  }
  // A request was followed, or nothing fitted. True if threads kept blocks until now.
  bool end() {
    fits_ = 0;
    const bool kept = now();
    if (kept) now_.store(false, std::memory_order_relaxed);
    return kept;
  }

 private:
  uint64_t fits_ = 0;
  std::atomic<bool> now_{false};
};

}  // namespace glake
