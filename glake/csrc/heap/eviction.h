// Undoing stitches: unmaps views that nobody uses. Needs slow.
#pragma once

#include "heap/device.h"

namespace glake {

class Eviction {
 public:
  explicit Eviction(Heap& heap) : heap_(heap), device_(heap.device) {}

  // Nobody uses the view, and no work does; the second asks the driver whether that work is done.
  bool idle(const View& view) const;
  bool ask_idle(const View& view);
  // Unmaps an idle view whose work is complete. A refusal leaves it as it was.
  bool evict(View* view, HotGuard& hot);
  // Keeps the addresses mapped by views under the budget, oldest use first, with room for n more.
  void make_room(Granules n, HotGuard& hot);

 private:
  Heap& heap_;
  Device& device_;
};

}  // namespace glake
