// Pins keep memory in place even if its block is freed. They are found by the pointer through which
// they were made. Used under the device's hot lock.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "memory/contiguous_pool.h"
#include "memory/granule_pool.h"
#include "memory/view.h"

namespace glake {

// Made by glake_pin(), or by another process that opened the block.
enum class PinOwner { kCaller, kProcess };

// All pins made through one pointer. They are of several blocks if the pointer was given out again
// meanwhile.
struct Pin {
  uint64_t counts[2] = {0, 0};  // by owner
  std::vector<std::pair<Arena*, uint64_t>> granules;
  std::vector<View*> views;
  std::vector<Allocation*> allocations;
};

class PinTable {
 public:
  explicit PinTable(GranulePool& granules) : granules_(granules) {}

  // Adds a pin on what lies under the block. `ptr` is its caller's pointer.
  void pin(const Block& block, Address ptr, const std::vector<Arena*>& arenas, PinOwner owner);
  // False if that owner has no pin there.
  bool unpin(Address ptr, PinOwner owner);
  uint64_t count(PinOwner owner) const;
  uint64_t granules() const { return pinned_; }
  // Says what is inconsistent, or "".
  std::string check() const;

 private:
  static uint64_t& index(Pin& pin, PinOwner owner) {
    return pin.counts[owner == PinOwner::kCaller ? 0 : 1];
  }
  GranulePool& granules_;
  std::unordered_map<Address, Pin> pins_;
  uint64_t pinned_ = 0;  // granules with a pin
};

}  // namespace glake
