// Pauses and resumes a region. heap/regions.h changes the device's books, and the copies are made
// here in between. Throws Error.
#pragma once

#include <string>

#include "process/process.h"

namespace glake {

// Where a paused region's bytes go: GLAKE_REGION_*.
struct PauseTo {
  int kind;
  std::string folder;
};

class RegionCalls {
 public:
  explicit RegionCalls(Process& process) : process_(process) {}

  void pause(int device, PoolId id, const PauseTo& to);
  void resume(int device, PoolId id, bool verify);
  static void set_budget(PoolId id, Bytes bytes);
  // Calls Regions::drop_freed() on all devices in use.
  void drop_freed();
  // All regions on all devices in use, as JSON.
  std::string list();

 private:
  Process& process_;
};

}  // namespace glake
