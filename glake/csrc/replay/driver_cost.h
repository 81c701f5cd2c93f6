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
  CallCost record, query, wait;  // of events; wait: the host's
  // Of one call over `bytes`.
  double of(CallCost Prices::* call, uint64_t bytes) const {
    const uint64_t granules = (bytes + kGranule - 1) / kGranule;
    const CallCost& price = this->*call;
    return price.first + price.further * static_cast<double>(granules > 1 ? granules - 1 : 0);
  }
  // New memory of `bytes`, each handle created and mapped by calls of its own; access set at once.
  double of_handles(uint64_t bytes, uint64_t handle) const {
    const auto handles = static_cast<double>((bytes + handle - 1) / handle);
    return handles * (of(&Prices::create, handle) + of(&Prices::map, handle)) +
           of(&Prices::access, bytes);
  }
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
    cost_.calls += 1;
    cost_.micros += prices_.of(call, bytes);
  }
  // `count` calls of one granule each.
  void charge_each(CallCost Prices::* call, uint64_t count) {
    cost_.calls += count;
    cost_.micros += (prices_.*call).first * static_cast<double>(count);
  }
  void charge_event(CallCost Prices::* call) {
    const double micros = (prices_.*call).first;
    cost_.event_calls += 1;
    cost_.event_micros += micros;
    cost_.micros += micros;
  }
  void charge_wait() {
    cost_.stream_waits += 1;
    charge_event(&Prices::wait);
  }
  const Prices& prices() const { return prices_; }
  const DriverCost& total() const { return cost_; }

 private:
  Prices prices_;
  DriverCost cost_;
};

}  // namespace glake::replay
