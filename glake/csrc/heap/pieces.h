// Takes free bytes of a heap into use, and frees them again. It updates all that counts them:
// shared edges, the views that reach them, statistics and events. Callers hold the hot lock. It
// makes no driver call.
#pragma once

#include <vector>

#include "heap/device.h"

namespace glake {

class Pieces {
 public:
  explicit Pieces(Heap& heap) : heap_(heap), device_(heap.device) {}

  // These take r's bytes: in the extent at `head` from `begin` on, or in a view from `offset` on.
  Found at_home(Arena& arena, Span* head, Address begin, const Request& r);
  Found on_view(View* view, Bytes offset, const Request& r);
  // Frees a block's bytes after the work of the tickets. The caller keeps the block's record.
  void release(Block* block, const Tickets& tickets);
  // Frees found bytes that no block has had.
  void give(Span* pieces, const Tickets& tickets);

  // These add `step`, 1 or -1, to the users of the granules of which these pieces hold only a part,
  // or to the aliases of each granule of the runs.
  void use_edges(Span* pieces, StreamId s, int step);
  void add_aliases(const std::vector<Run>& runs, int step);
  // Tells those who follow events and statistics that the bytes of a stitched block leave their
  // homes for the block's own address, or come back. So they see the same segments as a snapshot
  // does.
  void show_stitched(const Span* pieces, Address ptr, Bytes size, bool out);

 private:
  Heap& heap_;
  Device& device_;
};

}  // namespace glake
