// The objects behind streams and events.
#pragma once

#include <utility>
#include <vector>

#include "context.h"
#include "graph.h"
#include "op.h"
#include "types.h"

namespace simcuda {

// A stream capture that is under way, or over. `status` says how it went.
struct Capture {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t id = 0, origin = 0, thread = 0;
  GraphPtr graph;
  uint64_t graph_id = 0;  // its handle
};
using CapturePtr = std::shared_ptr<Capture>;

struct Stream {
  int device = -1;
  uint64_t context = 0;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;                       // its handle
  uint64_t number = 0;                   // no other stream ever has it
  bool legacy = false;                   // a context's NULL stream
  OpPtr tail;                            // the last work enqueued
  CapturePtr capture;                    // nullptr: not capturing
  After after;                           // capturing: what precedes its next work
  std::vector<CUgraphNode> told;         // the same, as it was last given to a caller
  uint64_t last_seq = 0, last_tick = 0;  // tick clock: number and tick of the last enqueued work
  uint64_t synced = 0;  // tick clock: the work up to this sequence number has been waited for
  // Tick clock: a wait for this stream is also a wait for these. Ordered by `at`.
  struct Wait {
    uint64_t at, stream, seq, tick;
  };
  std::vector<Wait> waits;
  // Copies that may end with an injected fault. unmarked: no event is behind them yet. unasked: no
  // call has waited for the stream since.
  std::vector<OpPtr> unmarked, unasked;

  bool non_blocking() const { return (flags & CU_STREAM_NON_BLOCKING) != 0; }
};

struct Event {
  uint64_t context = 0;
  unsigned flags = 0;
  bool recorded = false;
  CapturePtr capture;                      // recorded in a capture, so it says nothing of time
  After after;                             // the captured work that it stands for
  OpPtr op;                                // the last record; nullptr: tick clock
  uint64_t stream = 0, seq = 0, tick = 0;  // tick clock: where and when it was last recorded
};

class Streams {
 public:
  uint64_t create(const Context& context, unsigned flags, int priority);
  // Also takes NULL, the legacy handle and the per-thread handle. nullptr: there is no such stream.
  Stream* resolve(CUstream handle, const Context* current);
  Stream* find(uint64_t id) { return streams_.find(id); }
  Stream* legacy_of(uint64_t context);  // nullptr: not used yet
  // With `again` the next stream may have the same handle.
  void remove(uint64_t id, bool again) { streams_.remove(id, again); }
  template <class F>
  void for_each(F&& visit) {
    streams_.for_each(visit);
  }
  size_t live() const { return streams_.live(); }

  Slots<Event, 4>& events() { return events_; }
  Event* event(CUevent handle) { return events_.find(reinterpret_cast<uint64_t>(handle)); }

  // Destroys a context's streams and events. Returns the streams.
  std::vector<uint64_t> forget(uint64_t context);

 private:
  uint64_t default_stream(const Context& context, bool per_thread);

  Slots<Stream, 3> streams_;
  Slots<Event, 4> events_;
  std::vector<std::pair<uint64_t, uint64_t>> legacy_;  // context, stream
  inline static uint64_t numbers_ = 0;  // how many this process has had, also before a reset
};

}  // namespace simcuda
