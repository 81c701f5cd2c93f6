// Whether threads keep the large blocks that they free, as they keep small ones, so that the next
// request of the same size takes no lock of the device.
//
// Best fit does not see a block that is kept, and PastPlacements does not see the request that
// takes it. Both place a step that repeats better. So threads keep large blocks only where neither
// matters, which is after a long row of large requests:
//
//   - the row is as long as the longest step,
//   - none of them repeated a request of an earlier step,
//   - all of them fitted in what was mapped,
//   - and the room under the limit is at least as large as what is held.
//
// It ends when requests repeat earlier ones again. It also ends when nothing mapped fits a request,
// even after threads have given all back. (While threads contend for the device's lock they keep
// their large blocks in any case: HotLock.)
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/tuning.h"

namespace glake {

class LargeKeeping {
 public:
  // Frees ask this, without a lock.
  bool now() const { return now_.load(std::memory_order_relaxed); }

  // The rest is called under the device's lock. Each returns true if threads must give back the
  // blocks that they kept.

  // A large request repeated no earlier one, and found a place. has_room() says whether memory is
  // plentiful.
  template <typename HasRoom>
  bool found_by_fit(HasRoom&& has_room) {
    if (fits_ < Tuning::kMostStep && ++fits_ < Tuning::kMostStep) return false;
    return set(has_room());
  }
  // A large request repeated an earlier one. Some do so by chance, so keeping ends only after as
  // many as the shortest step has.
  bool followed() {
    fits_ -= std::min(fits_, Tuning::kMostStep / Tuning::kLeastStep);
    return fits_ == 0 && set(false);
  }
  // No mapped memory fitted a large request.
  bool end() {
    fits_ = 0;
    return set(false);
  }

 private:
  // True if this ends the keeping.
  bool set(bool now) {
    const bool before = this->now();
    if (now != before) now_.store(now, std::memory_order_relaxed);
    return before && !now;
  }

  uint64_t fits_ = 0;  // consecutive calls of found_by_fit(), less what each followed() subtracts
  std::atomic<bool> now_{false};
};

}  // namespace glake
