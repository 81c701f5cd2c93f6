// A rank's part in collectives. It provides its bytes, and computes its result from those of all
// ranks.
#pragma once

#include <vector>

#include "health.h"
#include "operation.h"
#include "others.h"
#include "seat.h"

namespace nccl {

class Collectives {
 public:
  Collectives(const Seat& seat, Others* others, Health* health)
      : seat_(seat), others_(others), health_(health) {}

  // Goes as far as the other ranks permit. Returns whether it is over.
  bool advance(const Operation& operation, Operation::Piece* piece);

 private:
  void bring(const Operation& operation, Operation::Piece* piece);
  bool all_brought(uint64_t number) const;
  bool all_passed(uint64_t number) const;
  bool same(const Operation::Piece& piece);
  bool compute(const Operation& operation, Operation::Piece* piece);
  void fold(const Operation::Piece& piece, const std::vector<const char*>& inputs, uint64_t first);
  bool find_known(Operation::Piece* piece) const;
  uint64_t brought(const Operation::Piece& piece, int rank) const;

  const Seat seat_;
  Others* const others_;
  Health* const health_;
};

// How many bytes of a rank's input are known.
uint64_t known_of(const Seat& seat, const Operation::Piece& piece);

}  // namespace nccl
