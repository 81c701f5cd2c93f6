// Modelled cost of the driver's memory-management calls for the policies that run on books alone:
// simcuda's own prices, so that every policy of one report pays the same.
#pragma once

#include <cstdint>
#include <string>

#include "policy.h"

namespace glake::replay {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kGranule = 2 * kMiB;

// Microseconds of one call over one granule, and of each further granule.
struct CallCost {
  double first = 0;
  double further = 0;
};

struct Prices {
  CallCost reserve, create, map, access, unmap, release;
};

// The prices in force in the simulator at `driver_path` ("": beside libglake). Throws ReplayError.
Prices simulator_prices(const std::string& driver_path);

constexpr uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

class CostBook {
 public:
  explicit CostBook(const Prices& prices) : prices_(prices) {}
  void charge(CallCost Prices::* call, uint64_t bytes) {
    const uint64_t granules = round_up(bytes, kGranule) / kGranule;
    const CallCost& price = prices_.*call;
    cost_.calls += 1;
    cost_.micros +=
        price.first + price.further * static_cast<double>(granules > 1 ? granules - 1 : 0);
  }
  // `count` calls of one granule each.
  void charge_each(CallCost Prices::* call, uint64_t count) {
    cost_.calls += count;
    cost_.micros += (prices_.*call).first * static_cast<double>(count);
  }
  void charge_wait() { cost_.stream_waits += 1; }
  const DriverCost& total() const { return cost_; }

 private:
  Prices prices_;
  DriverCost cost_;
};

}  // namespace glake::replay
