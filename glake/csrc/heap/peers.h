// Which other devices reach a device's memory.
#pragma once

#include <utility>
#include <vector>

#include "heap/device.h"

namespace glake {

class Peers {
 public:
  explicit Peers(Device& device) : device_(device) {}

  // Grants access to all devices that can have it, before anything is mapped.
  void grant_all();
  // Makes everything that is mapped now or later accessible from `peer`. Takes the locks. Throws
  // Error.
  void enable(int peer);
  // Devices that reach this one's memory.
  std::vector<int> grants();

 private:
  static void mapped_ranges(const Heap& heap, std::vector<std::pair<Address, Bytes>>* ranges);

  Device& device_;
};

}  // namespace glake
