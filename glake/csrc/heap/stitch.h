// Stitching: idle granules from anywhere, mapped side by side into a view, or behind what a view
// has (extend.h). Nothing is synchronised here, and nothing is unmapped but what a refused stitch
// has mapped. A stitch that is no longer needed is undone in eviction.h. Needs slow.
#pragma once

#include <vector>

#include "heap/granule_edges.h"

namespace glake {

class Stitch {
 public:
  explicit Stitch(Heap& heap) : heap_(heap), device_(heap.device) {}

  Found stitch(const Request& r, HotGuard& hot);
  // A last resort: the free end of one granule, whole granules, the free start of another.
  Found stitch_edges(const Request& r, HotGuard& hot, bool grows = true);
  // Maps the runs behind what the view has, and takes r's bytes from `offset` on. They are taken
  // before hot is let go. All or nothing.
  Found map_behind(View* view, Bytes offset, std::vector<Run> runs, const Request& r,
                   HotGuard& hot);

  // Whole free granules for r but the marked ones, from the largest extents first: best fit leaves
  // those alone longest, so the view is the likelier to be idle when the step comes round again.
  Granules collect(const Request& r, Granules want, Wait wait, std::vector<Run>& runs,
                   Tickets* pending);

 private:
  using Edge = GranuleEdges::Edge;

  Found join(const Request& r, HotGuard& hot, bool grows = true);
  Found build_joined(const Edge& head, std::vector<Run> runs, const Edge& tail, const Request& r,
                     HotGuard& hot);
  Found build_view(std::vector<Run> runs, Bytes offset, const Request& r, HotGuard& hot);
  void abandon(View* view, Granules before, const Found& found, const Request& r, uint64_t mapped,
               HotGuard& hot);

  Heap& heap_;
  Device& device_;
};

}  // namespace glake
