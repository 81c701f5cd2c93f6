// The largest request that would succeed now, as an out-of-memory error names it: what the other
// classes would find, without taking it. Where those change, this changes with them
// (largest_fit_test holds them together). Needs slow.
#pragma once

#include <string>

#include "heap/availability.h"

namespace glake {

// By how much memory could grow, in granules.
struct GrowthRoom {
  Granules limit, driver, now;
  Granules withheld;  // that the driver reports free and has refused
  Granules above;     // beyond a limit that was lowered
  Granules kept;      // that the driver reports free and headroom leaves to others
  std::string said;   // by the driver when it refused; empty: nothing
};

class LargestFit {
 public:
  explicit LargestFit(Heap& heap) : heap_(heap), device_(heap.device), available_(heap) {}

  // What r's heap has, and what others lend, where the arenas may grow by so much.
  Bytes largest(const Request& r, Granules growth);
  // The largest request of the caller's that would succeed, of all its sizes: where blocks from a
  // size on are contiguous, others than this one's kind may fit.
  Bytes callers(const Request& r, const Asked& asked, const GrowthRoom& allocations);

  // By how much the arenas could grow under the limit (`limit`), and as far as the driver has
  // memory
  // (`driver`): known when it has just refused, else as it reports, less what it refused before.
  GrowthRoom growth(Bytes* driver_free);
  // The same for a contiguous block, which takes nothing that is owed and no granule that is in
  // use, of at most `below`.
  GrowthRoom allocation_growth(int kind, Granules below, Bytes* driver_free, HotGuard& hot);

 private:
  struct Usable {
    Granules whole{0};           // from anywhere
    Bytes large = 0, small = 0;  // the longest stretch at home, for blocks of that class
    Bytes edges = 0;             // at the ends of granules that others use in part
    Bytes grown = 0;             // before a place to grow, with what can grow there
  };
  Usable usable(const Request& r, Granules growth);
  Bytes longest_stretch(const Arena& arena, const Request& r);
  Bytes longest_in_views(const Request& r);
  Bytes start_had(const Request& r, const Arena& arena, uint64_t g, Bytes prefix);
  Bytes fits_here(const Request& r, Granules growth);
  Bytes largest_allocation(int kind, StreamId stream, Granules growth) const;

  Heap& heap_;
  Device& device_;
  Availability available_;
};

}  // namespace glake
