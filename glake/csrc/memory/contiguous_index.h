// Process-wide: from an address to the allocation that holds it.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "base/types.h"
#include "memory/contiguous_pool.h"

namespace glake {

class ContiguousIndex {
 public:
  static void add(Allocation* allocation);
  static void remove(Allocation* allocation);
  // The record of the allocation at exactly `ptr`; if `ptr` is inside one, null and *inside is set.
  static Block* find(Address ptr, bool* inside);
  static Block* around(Address ptr);  // of the allocation that holds `ptr`; null: none

 private:
  static ContiguousIndex& instance();
  std::mutex mutex_;
  std::map<Address, std::pair<Bytes, Block*>> allocations_;
};

}  // namespace glake
