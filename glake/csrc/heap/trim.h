// Gives idle granules of a heap back to the driver. Callers hold the slow lock. Hot is let go
// around every driver call.
#pragma once

#include "heap/device.h"

namespace glake {

class Trim {
 public:
  explicit Trim(Heap& heap) : heap_(heap), device_(heap.device) {}

  // Gives back wholly free granules that no view maps and no work uses, until `want` have gone.
  // Returns how many have.
  Granules trim(Granules want, HotGuard& hot);
  // The same after draining caches and evicting views, waiting for nothing.
  Granules shrink(Granules want, HotGuard& hot);
  // Gives back every view and granule that neither blocks nor work use. `synced`: the device has
  // just been synchronised, which covers work that no ticket had room for.
  void all(bool synced, HotGuard& hot);
  // The same for a heap that is not paused.
  void idle(bool synced, HotGuard& hot);

 private:
  uint64_t settled_run(const Arena& arena, uint64_t g, uint64_t most, const Span*& at);
  Granules give_granules(Arena& arena, uint64_t g, Granules n, HotGuard& hot);

  Heap& heap_;
  Device& device_;
};

}  // namespace glake
