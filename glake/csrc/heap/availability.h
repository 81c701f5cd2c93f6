// Whether a stream may have free bytes of a heap, now or after a wait. Callers hold the hot lock.
// The only driver calls are stream waits, and questions where a name says so.
#pragma once

#include "heap/device.h"

namespace glake {

class Availability {
 public:
  explicit Availability(Heap& heap) : heap_(heap), device_(heap.device) {}

  // The answers are exact, except for a range that lies inside one granule: that granule must be
  // wholly free.
  bool range_free(const Arena& arena, Address begin, Bytes size) const;
  bool stretch_free(const View& view, Bytes offset, Bytes size) const;

  // True if only work before `s`'s next work may still use the range. `from` is the span that holds
  // its start. Work that must be waited for is added to `pending`. If that is null, the answer is
  // false at once.
  bool range_ordered(const Span* from, Address begin, Bytes size, StreamId s, Tickets* pending);
  // The same, but it asks the driver which of that work is complete.
  bool known_ordered(const Span* from, Address begin, Bytes size, StreamId s);
  // The same for a stretch of a view, which may share a granule at each end.
  bool stretch_ordered(const View& view, Bytes offset, const Request& r, Tickets* pending);

  // These make r's stream wait for work that may still use the range or stretch. False: it cannot.
  bool wait_for_range(const Span* from, Address begin, const Request& r);
  bool wait_for_stretch(const View& view, Bytes offset, const Request& r);

  // If a view's block has only a part of a granule, the rest of the granule serves only blocks of
  // the same stream. edge_allows(): whether a range at home may begin and end where it does.
  // edge_usable(): whether a view may use a granule.
  bool edge_allows(const Arena& arena, Address begin, Bytes size, StreamId s) const;
  bool edge_usable(Arena& arena, uint64_t g, StreamId s) const;

 private:
  Heap& heap_;
  Device& device_;
};

}  // namespace glake
