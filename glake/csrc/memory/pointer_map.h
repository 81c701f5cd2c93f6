// From an address to its region and that region's slots: two shifts and two loads, no hash and no
// lock. Process-wide, a page a GiB: regions are 1 GiB aligned and whole GiB long.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/types.h"

namespace glake {

struct Block;
class Region;
using Slot = std::atomic<Block*>;

class PointerMap {
 public:
  static void add(Region* region);
  static void remove(Region* region);
  static Region* find(Address ptr) {
    uint64_t page = ptr / kRegionAlign;
    return page < kPages ? pages_[page].region.load(std::memory_order_acquire) : nullptr;
  }

 private:
  friend class Region;
  // Side by side: a look-up needs both, and neither to find the other.
  struct Page {
    std::atomic<Region*> region{nullptr};
    std::atomic<Slot*> slots{nullptr};
  };
  static constexpr uint64_t kPages = uint64_t{1} << 19;  // 49-bit addresses
  static Page pages_[kPages];
};

}  // namespace glake
