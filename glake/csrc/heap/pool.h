// A private pool: who uses a heap that is not the device's own, and what else it keeps.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "heap/paused_heap.h"
#include "heap/region_book.h"
#include "memory/block.h"

namespace glake {

struct Pool {
  // A freed block that is kept undivided (GLAKE_POOL_NO_SPLIT).
  struct Whole {
    Block* block;
    Tickets tickets;
  };
  PoolId id;
  int users = 0;
  std::map<Address, Block*> blocks;  // live
  uint64_t lent = 0;                 // live blocks that other heaps borrowed
  std::vector<Whole> whole;
  const RegionName* region = nullptr;  // null: it is no region
  std::unique_ptr<PausedHeap> paused;  // null: it is not paused
};

}  // namespace glake
