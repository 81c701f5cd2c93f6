// Which blocks of a private pool were live at one moment, so that the pool can return to it.
#pragma once

#include <vector>

#include "base/types.h"
#include "driver/driver.h"
#include "memory/tickets.h"

namespace glake {

struct SavedBlock {
  Address ptr = 0;
  Bytes size = 0;
  Bytes requested = 0;
  StreamHandle stream = 0;
  StreamId stream_id = 0;
};

using Checkpoint = std::vector<SavedBlock>;  // in address order

// What a restore did: the blocks that were live before it, and those that are live after it.
struct RestoreLog {
  Checkpoint freed;
  Checkpoint allocated;
};

}  // namespace glake
