// Whether free bytes of a heap may be had by a stream: now, or after a wait. Under hot; no driver
// call but stream waits, and questions where a name says so.
#pragma once

#include "heap/device.h"

namespace glake {

class Availability {
 public:
  explicit Availability(Heap& heap) : heap_(heap), device_(heap.device) {}

  // Exact but for a range that lies inside one granule: that one must be wholly free.
  bool range_free(const Arena& arena, Address begin, Bytes size) const;
  bool stretch_free(const View& view, Bytes offset, Bytes size) const;

  // True if nothing may still use the range but what comes before `s`'s next work. `from`: the span
  // that holds its start. What is to be waited for is added to `pending`; null: that is not asked.
  bool range_ordered(const Span* from, Address begin, Bytes size, StreamId s, Tickets* pending);
  // The same, asking the driver which of that work is complete.
  bool known_ordered(const Span* from, Address begin, Bytes size, StreamId s);
  // The same of a stretch of a view, at whose ends it may share a granule.
  bool stretch_ordered(const View& view, Bytes offset, const Request& r, Tickets* pending);

  // Makes r's stream wait for what may still use the range, or the stretch. False: it cannot.
  bool wait_for_range(const Span* from, Address begin, const Request& r);
  bool wait_for_stretch(const View& view, Bytes offset, const Request& r);

  // A granule of which a view's block has only a part is shared with blocks of the same stream
  // only: whether a range at home may begin and end where it does, and whether a view may use a
  // granule.
  bool edge_allows(const Arena& arena, Address begin, Bytes size, StreamId s) const;
  bool edge_usable(Arena& arena, uint64_t g, StreamId s) const;

 private:
  Heap& heap_;
  Device& device_;
};

}  // namespace glake
