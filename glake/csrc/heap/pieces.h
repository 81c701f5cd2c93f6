// Takes free bytes of a heap into use, and frees them again. It also updates shared edges, the
// views that reach the bytes, statistics and events. Callers hold the hot lock. It makes no driver
// call.
#pragma once

#include <vector>

#include "heap/device.h"

namespace glake {

class Pieces {
 public:
  explicit Pieces(Heap& heap) : heap_(heap), device_(heap.device) {}

  // at_home() takes r's bytes from `begin` on in the extent at `head`. on_view() takes them from
  // `offset` on in a view.
  Found at_home(Arena& arena, Span* head, Address begin, const Request& r);
  Found on_view(View* view, Bytes offset, const Request& r);
  // Takes each granule of the runs as a span of its own.
  Found granules(const std::vector<GranuleRun>& runs, const Request& r);
  // Frees a block's bytes after the work of the tickets. The caller keeps the block's record.
  void release(Block* block, const Tickets& tickets);
  // Frees found bytes that no block has had.
  void give(Span* pieces, const Tickets& tickets);

  // use_edges() adds `step`, which is 1 or -1, to the number of users of each granule that the
  // pieces hold only in part. add_aliases() adds it to the number of aliases of each granule of the
  // runs.
  void use_edges(Span* pieces, StreamId s, int step);
  void add_aliases(const std::vector<GranuleRun>& runs, int step);
  // Tells those who follow events and statistics that the bytes of a stitched block leave their
  // homes for the block's own address, or come back. So they see the same segments as a snapshot
  // does.
  void show_stitched(const Span* pieces, Address ptr, Bytes size, bool out);

 private:
  Heap& heap_;
  Device& device_;
};

}  // namespace glake
