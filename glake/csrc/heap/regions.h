// Pausing and resuming a device's private pools: the books. The copies between
// (process/region_calls.cpp) are made with no lock held; while they are, the pool's state keeps
// everybody from its memory.
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
  int state = 0;  // 0: in use, 1: paused, 2: on its way
  int to = 0;     // GLAKE_REGION_*, where paused
  uint64_t blocks = 0;
};

// Begin, then the copies, then finish (end) or cancel. Each takes the locks it needs. Throws Error.
class Regions {
 public:
  struct Resumed {
    SavedBytes* saved = nullptr;  // null: there is nothing to be written
    bool whole = false;
    std::vector<std::pair<Address, Address>> live;  // blocks, sorted
  };

  explicit Regions(Device& device) : device_(device) {}

  std::vector<SavedPart> begin_pause(PoolId id);
  // The bytes are saved: the granules go. After GLAKE_MEMORY_OWED it is paused, after other errors
  // it is in use as before.
  void finish_pause(PoolId id, std::unique_ptr<SavedBytes> saved);
  void cancel_pause(PoolId id);
  // Has the granules again, all mapped where they were, or throws and is paused as before.
  Resumed begin_resume(PoolId id);
  void end_resume(PoolId id);
  void cancel_resume(PoolId id);
  // Gives up the memory and the saved bytes of blocks that were freed while they were paused, which
  // frees leave to those who look or take.
  void drop_freed();
  // This device's regions, and other pools that are paused.
  std::vector<RegionInfo> list();
  Granules paused_granules();  // under hot

 private:
  Device& device_;
};

}  // namespace glake
