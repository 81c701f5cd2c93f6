// A rank's place in the room where its communicator's ranks meet.
#pragma once

#include <memory>

#include "page.h"
#include "room.h"

namespace nccl {

struct Seat {
  std::shared_ptr<Room> room;
  int rank = 0, size = 0;
  bool phantom = false;  // memory has no bytes except the known ones

  Page& page() const { return *room->page(); }
  Rank& mine() const { return page().rank[rank]; }
};

}  // namespace nccl
