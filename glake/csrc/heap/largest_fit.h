// Computes the largest request that would succeed now, for the text of an out-of-memory error. It
// follows what Search, Stitch and the other classes of a request would do, but takes nothing. A
// change of those classes needs the same change here, and largest_fit_test compares the two.
// Callers hold the slow lock.
#pragma once

#include <string>

#include "heap/availability.h"

namespace glake {

// By how many granules memory could grow. `limit` looks at the limit alone, `driver` at what the
// driver has, and `now` at both.
struct GrowthRoom {
  Granules limit, driver, now;
  Granules withheld;  // reported free by the driver, but refused
  Granules above;     // held beyond a limit that was lowered
  Granules kept;      // free in the driver, but left to others as headroom
  std::string said;   // what the driver said when it refused; empty: it did not
};

class LargestFit {
 public:
  explicit LargestFit(Heap& heap) : heap_(heap), device_(heap.device), available_(heap) {}

  // The largest block for r in its heap's memory and in what other heaps lend, if the arenas may
  // grow by `growth`.
  Bytes largest(const Request& r, Granules growth);
  // The largest request of this caller that would succeed. With the option `contiguous`, blocks of
  // at least a given size are contiguous. Then that request may be of another kind than r.
  Bytes callers(const Request& r, const Asked& asked, const GrowthRoom& allocations);

  // By how much the arenas could grow. What the driver has is known if it has just refused. Else it
  // is what the driver reports, less what it refused before.
  GrowthRoom growth(Bytes* driver_free);
  // The same for a contiguous block of at most `below`. Such a block takes neither owed memory nor
  // granules that are in use.
  GrowthRoom allocation_growth(int kind, Granules below, Bytes* driver_free, HotGuard& hot);

 private:
  struct Usable {
    Granules whole{0};           // free ones, from anywhere
    Bytes large = 0, small = 0;  // the longest free stretch for a block of that class
    Bytes edges = 0;             // the free end of one granule and the free start of another
    Bytes grown = 0;             // a free stretch with the growth that can follow it
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
