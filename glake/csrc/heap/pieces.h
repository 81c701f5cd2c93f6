// Takes free bytes of a heap into use, and out of it again, with all that counts them: the edges
// they share, the views they are reached by, statistics and events. Under hot; no driver call.
#pragma once

#include <vector>

#include "heap/device.h"

namespace glake {

class Pieces {
 public:
  explicit Pieces(Heap& heap) : heap_(heap), device_(heap.device) {}

  // r's bytes from `begin` on in the extent at `head`; or in a view, from `offset` on.
  Found at_home(Arena& arena, Span* head, Address begin, const Request& r);
  Found on_view(View* view, Bytes offset, const Request& r);
  // A block's bytes are free again, after this work; its record is the caller's still.
  void release(Block* block, const Tickets& tickets);
  // Found bytes that no block has had are free again.
  void give(Span* pieces, const Tickets& tickets);

  // Counts (step = 1) or discounts (-1) the granules of which these pieces hold only a part; and
  // one alias of each granule of the runs.
  void use_edges(Span* pieces, StreamId s, int step);
  void add_aliases(const std::vector<Run>& runs, int step);
  // For those who follow events and statistics: the bytes of a stitched block leave their homes for
  // its own address, or come back. So the segments told of are those of a snapshot.
  void show_stitched(const Span* pieces, Address ptr, Bytes size, bool out);

 private:
  Heap& heap_;
  Device& device_;
};

}  // namespace glake
