// Moves the bytes of an operation's parts between the ranks: messages when the other side is ready,
// and collectives one after another.
#pragma once

#include "collectives.h"
#include "health.h"
#include "operation.h"
#include "others.h"
#include "seat.h"
#include "stage.h"

namespace nccl {

class Performer {
 public:
  Performer(const Seat& seat, Stage* stage, Health* health)
      : seat_(seat),
        stage_(stage),
        health_(health),
        others_(seat.room),
        collectives_(seat, &others_, health) {}
  Performer(const Performer&) = delete;
  Performer& operator=(const Performer&) = delete;

  // True once all parts are done, and false if they cannot be done.
  bool perform(Operation* operation);

 private:
  bool show_known(Operation* operation);
  bool advance(Operation* operation);  // returns whether anything moved
  bool advance_send(const Operation& operation, Operation::Piece* piece);
  bool advance_recv(Operation::Piece* piece);
  bool check_ranks(const Operation& operation);
  bool needs(const Operation::Piece& piece, int rank) const;

  const Seat seat_;
  Stage* const stage_;
  Health* const health_;
  Others others_;
  Collectives collectives_;
};

}  // namespace nccl
