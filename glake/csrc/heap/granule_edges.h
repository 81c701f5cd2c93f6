// The free end of one granule and the free start of another: with whole granules between them a
// view makes one block of them. Under hot.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "heap/availability.h"

namespace glake {

class GranuleEdges {
 public:
  // The free end, or start, of a granule of which others have the rest; of 0 bytes: none.
  struct Edge {
    Run run;
    Bytes bytes = 0;
  };
  struct Pair {
    Edge head, tail;
  };

  // Those that the request's stream may have without a wait.
  GranuleEdges(Heap& heap, const Request& r) : heap_(heap), available_(heap), request_(r) {}

  // The longest free ends of two granules, the longer first; of 0 bytes where there are no more. If
  // a block ends best in the granule of the first, it can begin in the second.
  std::array<Edge, 2> widest_heads();
  // Visits the free starts of granules other than the head's.
  void each_tail(const Edge& head, const std::function<void(const Edge&)>& visit);
  // Finds a free end and a free start that together hold `bytes` and have least to spare. Looks at
  // a bounded number of them. False: there are none.
  bool tightest(Bytes bytes, Pair* best);

 private:
  bool ready(Arena& arena, uint64_t g, Address a, Bytes bytes);
  void collect(Arena& arena);

  Heap& heap_;
  Availability available_;
  const Request& request_;
  std::vector<Edge> heads_, tails_;
};

}  // namespace glake
