// What the other heaps of a device do for one that runs out of memory. Needs slow.
#pragma once

#include "heap/device.h"

namespace glake {

class Lending {
 public:
  explicit Lending(Heap& heap) : heap_(heap), device_(heap.device) {}

  // Has other heaps give memory back so that this one may grow; makes nobody wait. True if any did.
  bool reclaim_elsewhere(const Request& r, HotGuard& hot);
  // A block of a pool that lets others have its free memory rather than run out; null: none does.
  Block* borrow(const Request& r, StreamHandle stream, HotGuard& hot);

 private:
  Heap& heap_;
  Device& device_;
};

}  // namespace glake
