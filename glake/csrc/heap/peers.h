// Which other devices reach a device's memory.
#pragma once

#include <utility>
#include <vector>

#include "heap/device.h"

namespace glake {

class Peers {
 public:
  explicit Peers(Device& device) : device_(device) {}

  // All that can, before anything is mapped.
  void grant_all();
  // Everything mapped becomes accessible from `peer` too, and all that is mapped later. Takes the
  // locks. Throws Error.
  void enable(int peer);
  // Devices that reach this one's memory.
  std::vector<int> grants();

 private:
  static void mapped_ranges(const Heap& heap, std::vector<std::pair<Address, Bytes>>* ranges);

  Device& device_;
};

}  // namespace glake
