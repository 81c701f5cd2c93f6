// What a device holds at one moment: see glake_visit_memory (glake.h).
#pragma once

#include <vector>

#include "base/types.h"
#include "driver/driver.h"
#include "watch/context.h"

namespace glake {

struct BlockShot {
  Address address = 0;
  Bytes bytes = 0;
  Bytes requested = 0;  // 0: nobody has it
  int state = GLAKE_INACTIVE;
  StreamHandle stream = 0;
  const char* tag = nullptr;
  ContextRef context;
};

struct SegmentShot {
  Address address = 0;
  Bytes bytes = 0;
  StreamHandle stream = 0;  // of a contiguous block; granules have no stream
  glake_pool pool{0, 0};
  bool large = false;
  int kind = GLAKE_STITCHED;
  bool paused = false;            // the driver has its memory
  std::vector<BlockShot> blocks;  // by address, without a gap
};

using Snapshot = std::vector<SegmentShot>;

}  // namespace glake
