// Reads the simulator's tables and prices calls.
#include "driver_calls.h"

#include "sim_driver.h"

namespace glake::replay {
namespace {

double sum(const PriceTable& table, const DriverCalls& calls, size_t from, size_t to) {
  double total = 0;
  for (size_t i = from; i < to; ++i) {
    const CallCount& count = calls.counts()[i];
    const CallPrice& price = table.prices[i];
    total += price.first * static_cast<double>(count.calls) +
             price.further * static_cast<double>(count.further) +
             (price.mapping - price.further) * static_cast<double>(count.mappings);
  }
  return total;
}

}  // namespace

DriverTime PriceTable::of(const DriverCalls& calls, const DriverCalls& growth) const {
  DriverTime time;
  time.events = sum(*this, calls, kFirstWait, kCalls);
  time.all = sum(*this, calls, 0, kFirstWait) + time.events;
  time.growth = sum(*this, growth, 0, kCalls);
  return time;
}

std::vector<PriceTable> price_tables(const std::string& driver_path,
                                     const std::vector<std::string>& names) {
  const SimDriver simulator(driver_path);
  std::vector<PriceTable> tables;
  for (const std::string& name : names) {
    PriceTable& table = tables.emplace_back();
    table.name = name;
    for (size_t i = 0; i < kCalls; ++i) {
      CallPrice& price = table.prices[i];
      int result = simulator.table_price(name.c_str(), kCallNames[i], &price.first, &price.further);
      if (result == 0) {
        result = simulator.mapping_price(name.c_str(), kCallNames[i], &price.mapping);
      }
      if (result != 0) throw ReplayError("cost table " + name + ": " + simulator.last_error());
    }
  }
  return tables;
}

}  // namespace glake::replay
