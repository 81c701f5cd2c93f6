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
// Where nothing else fits a request, threads give all back. If several threads keep blocks, memory
// grows instead, up to a quarter above the most that was ever live. Keeping ends when nothing
// mapped fits a request even then, when requests repeat earlier ones again, and when kept blocks
// serve less than half of the requests. (While threads contend for the device's lock they keep
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
  // plentiful, and requests() how many large requests there have been, those that threads served
  // included.
  template <typename HasRoom, typename Requests>
  bool found_by_fit(HasRoom&& has_room, Requests&& requests) {
    if (fits_ < Tuning::kMostStep && ++fits_ < Tuning::kMostStep) return false;
    const bool before = now();
    if (!before || ++missed_ == Tuning::kLeastStep) {
      const int64_t all = requests();
      // Where most sizes never return, kept blocks serve nobody.
      const int64_t served = all - all_before_ - static_cast<int64_t>(missed_);
      if (before && served >= 0 && served < static_cast<int64_t>(missed_)) return end();
      all_before_ = all;
      missed_ = 0;
    }
    return set(has_room());
  }
  // A large request repeated one of `period` requests ago. Some do so by chance, so keeping ends
  // only after as many as the shortest step has. Requests that threads serve themselves do not come
  // here. Those that do are of few sizes, and repeat by chance soon: no step is that short.
  bool followed(uint64_t period) {
    if (now() && period < Tuning::kLeastStep) return false;
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

  // While threads keep blocks: how many requests they could not serve since they were last counted,
  // and how many requests there had been.
  uint64_t missed_ = 0;
  int64_t all_before_ = 0;
  uint64_t fits_ = 0;  // consecutive calls of found_by_fit(), less what each followed() subtracts
  std::atomic<bool> now_{false};
};

}  // namespace glake
