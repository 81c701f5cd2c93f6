// How many stream waits a repetition of a training step may still cost.
#pragma once

#include <cstdint>

#include "heap/placement_history.h"

namespace glake {

class WaitBudget {
 public:
  // True once this repetition of the step has waited often; `waits`: the device's so far. A
  // sequence that repeats within a step (a layer's) does not make the budget anew.
  bool spent(const PlacementHistory& history, uint64_t waits);

 private:
  uint64_t begin_ = 0;  // request that began the repetition
  uint64_t waits_ = 0;  // before it
};

}  // namespace glake
