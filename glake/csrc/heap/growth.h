// Takes more granules from the driver, at home in a heap's arenas. Callers hold the slow lock. It
// releases hot around every mapping call.
#pragma once

#include <vector>

#include "heap/device.h"
#include "heap/taken_granules.h"

namespace glake {

class Growth {
 public:
  explicit Growth(Heap& heap) : heap_(heap), device_(heap.device) {}

  // Extends the free extent that needs the fewest new granules, most often the arena's end.
  Found grow(const Request& r, HotGuard& hot);
  // How many granules grow() would take. If there is no place, the result is larger than any number
  // of granules.
  Granules fewest(const Request& r);
  // Adds one granule to the small arena.
  Found grow_small(const Request& r, HotGuard& hot);
  // Creates granules at the first absent places, as runs that `taken` keeps. It releases hot for
  // each place.
  bool add_fresh(Granules n, std::vector<GranuleRun>& runs, TakenGranules& taken, HotGuard& hot);
  // Creates granules that are free for any request.
  bool add_free(Granules n, HotGuard& hot);

 private:
  // Where the fewest new granules make room for a request; null: nowhere.
  struct Place {
    Span* absent = nullptr;
    Granules need;
  };

  Place cheapest(const Request& r);
  bool back(Arena& arena, Span* claimed, HotGuard& hot);
  void count_backed(const Arena& arena, Address begin, Granules n);
  void keep_backed(Arena& arena, Span* claimed, Granules first);

  Heap& heap_;
  Device& device_;
};

}  // namespace glake
