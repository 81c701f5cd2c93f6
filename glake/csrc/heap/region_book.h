// Regions: private pools with a name and a budget.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"

namespace glake {

// As in glake_pool; {0, 0} is the device's own memory.
using PoolId = std::pair<uint64_t, uint64_t>;

struct RegionName {
  std::string name;
  std::atomic<Bytes> budget{0};  // on each device, in granules' bytes; 0: none
};

// The process's regions by name. The pool of a region is {kRegions, its number} on every device.
class RegionBook {
 public:
  static constexpr uint64_t kRegions = uint64_t{1} << 62;  // no pool id of PyTorch begins with this
  static RegionBook& instance();

  PoolId pool_of(const std::string& name);  // the first call makes it
  RegionName* find(PoolId id);              // null: the id is no region's; a region never ends
  std::vector<PoolId> all();
  // The pool as messages show it: `region "weights"`, or `pool {3, 0}`.
  std::string text(PoolId id);
  // The call by which a user resumes it.
  std::string way_back(PoolId id);

 private:
  std::mutex mutex_;
  std::deque<RegionName> names_;  // by number, which begins at 1
};

}  // namespace glake
