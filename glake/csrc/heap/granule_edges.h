// The free end of one granule and the free start of another. A view joins them, with whole granules
// between them, into one block. Callers hold the hot lock.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "heap/availability.h"

namespace glake {

class GranuleEdges {
 public:
  // The free end, or start, of a granule whose other part is in use; of 0 bytes: there is none.
  struct Edge {
    GranuleRun run;
    Bytes bytes = 0;
  };
  struct Pair {
    Edge head, tail;
  };

  // It finds the edges that the request's stream may have without a wait.
  GranuleEdges(Heap& heap, const Request& r) : heap_(heap), available_(heap), request_(r) {}

  // The longest free ends of two granules, the longer one first; of 0 bytes if there are no more.
  // The block may begin in the second if it ends best in the granule of the first.
  std::array<Edge, 2> widest_heads();
  // Visits the free starts of all granules but the head's.
  void each_tail(const Edge& head, const std::function<void(const Edge&)>& visit);
  // Finds a free end and a free start that together hold `bytes` and waste least. It looks at a
  // bounded number of them. False: there are none.
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
