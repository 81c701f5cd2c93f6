// Makes a block from free granules that a view has already and more granules mapped behind them. So
// only the missing granules are mapped. If neither blocks nor work use the view, it is cut first,
// where that saves more than it costs.
// Callers hold the slow lock.
#pragma once

#include <vector>

#include "heap/availability.h"

namespace glake {

class Extend {
 public:
  explicit Extend(Heap& heap) : heap_(heap), device_(heap.device), available_(heap) {}

  // Puts r into a free stretch of a view and into more granules mapped behind it, if that needs no
  // wait.
  Found extend_view(const Request& r, HotGuard& hot);
  // The longest request above `least` that extend_view() makes now, if the arenas may grow by
  // `growth`; 0: none.
  Granules most_extended(const Request& r, Granules growth, Granules least);
  // How many granules r's stream may have without a wait at the end of a free stretch of a view, in
  // the stretch where they are most. extend_view() can use them without mapping anything.
  Granules longest_reuse(const Request& r);

 private:
  struct Reuse {
    View* view = nullptr;
    Granules at, length;  // of the free stretch; the rest is mapped behind it
    Granules next;        // the longest request that a place too short for r may serve
  };
  struct Extension {
    Reuse reuse;
    std::vector<GranuleRun> behind;  // granules to be mapped behind it
    Granules fresh;                  // new granules to be mapped behind those
    Granules reach;                  // the longest request that the place serves
  };
  Extension best_extension(const Request& r, Granules growth);
  Reuse most_reuse(const Request& r, Granules need);
  bool unmap_behind(View* view, const std::vector<GranuleRun>& runs, HotGuard& hot);

  Heap& heap_;
  Device& device_;
  Availability available_;
};

}  // namespace glake
