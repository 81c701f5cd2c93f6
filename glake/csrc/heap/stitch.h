// Stitching maps idle granules from anywhere side by side into a new view, or behind what a view
// has (extend.h). Nothing is synchronised here. Nothing is unmapped, except what a refused stitch
// has mapped. Eviction undoes a stitch that is no longer needed (eviction.h). Callers hold the slow
// lock.
#pragma once

#include <vector>

#include "heap/granule_edges.h"

namespace glake {

class Stitch {
 public:
  explicit Stitch(Heap& heap) : heap_(heap), device_(heap.device) {}

  Found stitch(const Request& r, HotGuard& hot);
  // Finds r.size in whole granules, and maps nothing. It creates what is missing.
  Found granules(const Request& r, HotGuard& hot);
  // A last resort: joins the free end of one granule, whole granules and the free start of another.
  Found stitch_edges(const Request& r, HotGuard& hot, bool grows = true);
  // Maps the runs behind what the view has. Takes r's bytes from `offset` on, before hot is let go.
  // If the driver refuses, all of this is undone.
  Found map_behind(View* view, Bytes offset, std::vector<GranuleRun> runs, const Request& r,
                   HotGuard& hot);

  // Collects whole free granules for r, except the stamped ones. The largest extents come first:
  // best fit uses these last, so the view is more likely to be idle when the step repeats.
  Granules collect(const Request& r, Granules want, Wait wait, std::vector<GranuleRun>& runs,
                   Tickets* pending);

 private:
  using Edge = GranuleEdges::Edge;

  bool gather(const Request& r, Granules need, std::vector<GranuleRun>* runs, Granules* have);
  bool add_missing(const Request& r, Granules missing, std::vector<GranuleRun>* runs,
                   HotGuard& hot);
  Found join(const Request& r, HotGuard& hot, bool grows = true);
  Found build_joined(const Edge& head, std::vector<GranuleRun> runs, const Edge& tail,
                     const Request& r, HotGuard& hot);
  Found build_view(std::vector<GranuleRun> runs, Bytes offset, const Request& r, HotGuard& hot);
  void abandon(View* view, Granules before, const Found& found, const Request& r, uint64_t mapped,
               HotGuard& hot);

  Heap& heap_;
  Device& device_;
};

}  // namespace glake
