// Keeps the books while a device's private pools pause and resume. The copies in between
// (process/region_calls.cpp) are made with no lock held. Meanwhile the pool's state keeps everybody
// from its memory.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "heap/device.h"

namespace glake {

// A region on one device, for reports.
struct RegionInfo {
  PoolId pool;
  Bytes live = 0, reserved = 0, paused = 0, saved = 0;
  int state = 0;  // 0: in use, 1: paused, 2: pausing or resuming
  int to = 0;     // GLAKE_REGION_*, if paused
  uint64_t blocks = 0;
};

// A caller begins, makes the copies, then finishes (ends) or cancels. Each call takes the locks
// that it needs. Throws Error.
class Regions {
 public:
  struct Resumed {
    SavedBytes* saved = nullptr;  // null: there is nothing to write
    bool whole = false;
    std::vector<std::pair<Address, Address>> live;  // blocks, sorted
  };

  explicit Regions(Device& device) : device_(device) {}

  std::vector<SavedPart> begin_pause(PoolId id);
  // Called once the bytes are saved: gives the granules to the driver. If that throws
  // GLAKE_MEMORY_OWED, the region is paused. After other errors it is in use as before.
  void finish_pause(PoolId id, std::unique_ptr<SavedBytes> saved);
  void cancel_pause(PoolId id);
  // Takes the granules again and maps all of them where they were. If it throws, the region stays
  // paused.
  Resumed begin_resume(PoolId id);
  void end_resume(PoolId id);
  void cancel_resume(PoolId id);
  // Gives up the memory and the saved bytes of blocks that were freed while they were paused. Frees
  // leave this to later calls.
  void drop_freed();
  // This device's regions, and its other pools that are paused.
  std::vector<RegionInfo> list();
  Granules paused_granules();  // callers hold the hot lock

 private:
  Resumed map_again(PoolId id);

  Device& device_;
};

}  // namespace glake
