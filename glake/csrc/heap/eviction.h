// Undoes stitches: unmaps views that nobody uses. Callers hold the slow lock.
#pragma once

#include "heap/device.h"

namespace glake {

class Eviction {
 public:
  explicit Eviction(Heap& heap) : heap_(heap), device_(heap.device) {}

  // True if neither a block nor work uses the view. ask_idle() also asks the driver whether the
  // work is done.
  bool idle(const View& view) const;
  bool ask_idle(const View& view);
  // Unmaps an idle view whose work is complete. A refusal leaves it as it was.
  bool evict(View* view, HotGuard& hot);
  // Evicts views, least recently used first, until n more granules fit into the budget of mapped
  // addresses.
  void make_room(Granules n, HotGuard& hot);

 private:
  Heap& heap_;
  Device& device_;
};

}  // namespace glake
