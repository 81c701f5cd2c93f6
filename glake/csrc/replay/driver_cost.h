// Modelled cost of the driver's memory-management calls for the policies that run on books alone:
// simcuda's own table (simcuda/symbols.h, unmeasured), so that every policy of one report pays the
// same prices.
#pragma once

#include <cstdint>

#include "../simcuda/symbols.h"
#include "policy.h"

namespace glake::replay {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kGranule = 2 * kMiB;

// Microseconds of one call over one granule, and of each further granule.
struct CallCost {
  double first;
  double further;
};

// One constant for every call of the table, named as the call: cost_of::cuMemMap.
namespace cost_of {
#define GLAKE_REPLAY_COST(base, exported, since, first, further) \
  constexpr CallCost base{first, further};
SIMCUDA_CALLS(GLAKE_REPLAY_COST)
#undef GLAKE_REPLAY_COST
}  // namespace cost_of

constexpr CallCost kReserveCost = cost_of::cuMemAddressReserve;
constexpr CallCost kCreateCost = cost_of::cuMemCreate;
constexpr CallCost kMapCost = cost_of::cuMemMap;
constexpr CallCost kSetAccessCost = cost_of::cuMemSetAccess;
constexpr CallCost kUnmapCost = cost_of::cuMemUnmap;
constexpr CallCost kReleaseCost = cost_of::cuMemRelease;

constexpr uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

class CostBook {
 public:
  void charge(const CallCost& call, uint64_t bytes) {
    const uint64_t granules = round_up(bytes, kGranule) / kGranule;
    cost_.calls += 1;
    cost_.micros +=
        call.first + call.further * static_cast<double>(granules > 1 ? granules - 1 : 0);
  }
  void charge_wait() { cost_.stream_waits += 1; }
  const DriverCost& total() const { return cost_; }

 private:
  DriverCost cost_;
};

}  // namespace glake::replay
