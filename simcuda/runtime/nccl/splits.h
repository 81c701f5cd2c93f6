// Splits of a communicator. Each rank says what it wants of the next split, and reads the wishes of
// all.
#pragma once

#include <utility>
#include <vector>

#include "health.h"
#include "seat.h"

namespace nccl {

class Splits {
 public:
  Splits(const Seat& seat, Health* health) : seat_(seat), health_(health) {}

  // Tells this rank's wish. Returns the split's number.
  uint64_t publish(int color, int key);
  ncclResult read(uint64_t turn, std::vector<std::pair<int, int>>* colors_and_keys);

 private:
  const Seat seat_;
  Health* const health_;
  uint64_t turns_ = 0;
};

}  // namespace nccl
