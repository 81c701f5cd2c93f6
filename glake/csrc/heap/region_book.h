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

using PoolId = std::pair<uint64_t, uint64_t>;  // as glake_pool; {0, 0} is the device's own memory

struct RegionName {
  std::string name;
  std::atomic<Bytes> budget{0};  // of each device's granules; 0: none
};

// The process's regions by name. The pool of one is {kRegions, its number}, on every device.
class RegionBook {
 public:
  static constexpr uint64_t kRegions = uint64_t{1} << 62;  // no pool of PyTorch's begins so
  static RegionBook& instance();

  PoolId pool_of(const std::string& name);  // made with the first call
  RegionName* find(PoolId id);              // null: no region's; never gone again
  std::vector<PoolId> all();
  // As texts name it: `region "weights"`, or `pool {3, 0}`.
  std::string text(PoolId id);
  // How a caller resumes it.
  std::string way_back(PoolId id);

 private:
  std::mutex mutex_;
  std::deque<RegionName> names_;  // by number, from 1 on
};

}  // namespace glake
