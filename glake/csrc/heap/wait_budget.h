// How many stream waits a repetition of a training step may still cost.
#pragma once

#include <cstdint>

#include "heap/past_placements.h"

namespace glake {

class WaitBudget {
 public:
  // True once this repetition of the step has waited often. `waits` is the device's count so far. A
  // sequence that repeats within a step, such as a layer's, does not renew the budget.
  bool spent(const PastPlacements& history, uint64_t waits);

 private:
  uint64_t begin_ = 0;  // the request that began the repetition
  uint64_t waits_ = 0;  // the device's count before it
};

}  // namespace glake
