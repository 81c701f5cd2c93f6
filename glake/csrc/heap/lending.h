// What the other heaps of a device do for one that runs out of memory. Callers hold the slow lock.
#pragma once

#include "heap/device.h"

namespace glake {

class Lending {
 public:
  explicit Lending(Heap& heap) : heap_(heap), device_(heap.device) {}

  // Makes other heaps give memory back, so that this one may grow. Nobody waits for work. True if
  // any heap gave memory back.
  bool reclaim_elsewhere(const Request& r, HotGuard& hot);
  // Takes a block of a pool that lends its free memory to heaps that run out
  // (GLAKE_POOL_USE_ON_OOM). Null if no pool has one.
  Block* borrow(const Request& r, StreamHandle stream, HotGuard& hot);

 private:
  Heap& heap_;
  Device& device_;
};

}  // namespace glake
