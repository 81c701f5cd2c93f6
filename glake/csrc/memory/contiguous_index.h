// Finds the allocation that holds an address, for the whole process.
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
  // The record of the allocation that begins at `ptr`, or null. *inside says whether `ptr` is in
  // any allocation.
  static Block* find(Address ptr, bool* inside);
  // The record of the allocation that holds `ptr`; null if none does.
  static Block* around(Address ptr);

 private:
  static ContiguousIndex& instance();
  std::mutex mutex_;
  std::map<Address, std::pair<Bytes, Block*>> allocations_;
};

}  // namespace glake
