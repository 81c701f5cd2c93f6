// Stitching behind what a view has already, so that only what a request lacks is mapped. A view
// that neither blocks nor work use is cut first where that saves more than it costs. Needs slow.
#pragma once

#include <vector>

#include "heap/availability.h"

namespace glake {

class Extend {
 public:
  explicit Extend(Heap& heap) : heap_(heap), device_(heap.device), available_(heap) {}

  // r in a free stretch of a view and in more granules mapped behind it, when that needs no wait.
  Found extend_view(const Request& r, HotGuard& hot);
  // The longest request above `least` that extend_view() makes now, where the arenas may grow by so
  // much; 0: none.
  Granules most_extended(const Request& r, Granules growth, Granules least);
  // The longest end of a view's free stretch that r's stream has without a wait: what extend_view()
  // finds where it need map nothing.
  Granules longest_reuse(const Request& r);

 private:
  struct Reuse {
    View* view = nullptr;
    Granules at, length;  // of the free stretch behind which the rest is mapped
    Granules next;        // the longest shorter request for which there are more places
  };
  struct Plan {
    Reuse reuse;
    std::vector<Run> behind;  // granules to be mapped behind it
    Granules fresh;           // and new ones
    Granules reach;           // what the place serves at most
  };
  Plan plan(const Request& r, Granules growth);
  Reuse most_reuse(const Request& r, Granules need);
  bool unmap_behind(View* view, const std::vector<Run>& runs, HotGuard& hot);

  Heap& heap_;
  Device& device_;
  Availability available_;
};

}  // namespace glake
