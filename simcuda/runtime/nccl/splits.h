// Splits of a communicator: each rank says what it wants of the next one, and reads all wishes.
#pragma once

#include <utility>
#include <vector>

#include "health.h"
#include "seat.h"

namespace nccl {

class Splits {
 public:
  Splits(const Seat& seat, Health* health) : seat_(seat), health_(health) {}

  // This rank's wish; which split it is of.
  uint64_t publish(int color, int key);
  ncclResult read(uint64_t turn, std::vector<std::pair<int, int>>* colors_and_keys);

 private:
  const Seat seat_;
  Health* const health_;
  uint64_t turns_ = 0;
};

}  // namespace nccl
