// Checks whether a device's books agree with each other, for glake_check() and tests.
#pragma once

#include <string>
#include <vector>

#include "heap/device.h"

namespace glake {

class Invariants {
 public:
  explicit Invariants(Device& device) : device_(device) {}

  // Takes the locks. Throws Error(GLAKE_INTERNAL) that names what is broken.
  void check();

 private:
  std::string broken(Heap& heap, Bytes* busy_bytes);
  static std::string broken_views(const Heap& heap, bool settled);
  static std::string broken_range(const Heap& heap, VirtualRange& range,
                                  std::vector<std::vector<uint32_t>>* aliases);
  static Granules used_granules(const Arena& arena);

  Device& device_;
};

}  // namespace glake
