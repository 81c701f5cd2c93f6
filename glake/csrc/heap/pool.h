// A private pool: who uses a heap that is not the device's own, and what else it keeps.
#pragma once

#include <map>
#include <memory>

#include "heap/paused_heap.h"
#include "heap/region_book.h"
#include "memory/block.h"

namespace glake {

struct Pool {
  PoolId id;
  int users = 0;
  std::map<Address, Block*> blocks;    // live
  uint64_t lent = 0;                   // live blocks that other heaps borrowed
  const RegionName* region = nullptr;  // null: it is no region
  std::unique_ptr<PausedHeap> paused;  // null: it is not paused
};

}  // namespace glake
