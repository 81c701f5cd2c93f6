// Streams and events as objects, stream capture, and the tick clock: how work completes in phantom
// replays.
#pragma once

#include <atomic>

#include "context.h"
#include "graph.h"
#include "op.h"
#include "types.h"

namespace simcuda {

// A stream capture under way, or over (then `status` says how it went).
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
  uint64_t number = 0;                   // no other stream's, ever
  bool legacy = false;                   // a context's NULL stream
  OpPtr tail;                            // the last work enqueued
  CapturePtr capture;                    // nullptr: not capturing
  After after;                           // capturing: what its next work comes after
  std::vector<CUgraphNode> told;         // the same, as last given to a caller
  uint64_t last_seq = 0, last_tick = 0;  // tick clock: of the last work enqueued
  uint64_t synced = 0;  // tick clock: work up to this sequence number has been waited for
  // Tick clock: waiting for this stream also waits for these. Ordered by `at`.
  struct Wait {
    uint64_t at, stream, seq, tick;
  };
  std::vector<Wait> waits;
  // Copies that may end with an injected fault: those no event answers for yet, and those since a
  // call last waited for the stream.
  std::vector<OpPtr> unmarked, unasked;

  bool non_blocking() const { return (flags & CU_STREAM_NON_BLOCKING) != 0; }
};

struct Event {
  uint64_t context = 0;
  unsigned flags = 0;
  bool recorded = false;
  CapturePtr capture;                      // recorded in a capture: says nothing of time
  After after;                             // and what it stands for there
  OpPtr op;                                // the last record; nullptr: tick clock
  uint64_t stream = 0, seq = 0, tick = 0;  // of the last record, tick clock
};

class Streams {
 public:
  Slots<Stream, 3> streams;
  Slots<Event, 4> events;
  Graphs graphs;
  std::atomic<uint64_t> ticks{0};

  uint64_t create(const Context& context, unsigned flags, int priority);
  // NULL, the legacy and the per-thread handles included; nullptr: no such stream.
  Stream* resolve(CUstream handle, const Context* current);
  Event* find(CUevent handle) { return events.find(reinterpret_cast<uint64_t>(handle)); }

  Stream* legacy_of(uint64_t context);  // nullptr: not used yet
  // Destroys a context's streams and events.
  void forget(uint64_t context);

  // Stream capture. A call that would break a capture under way says so and spoils it.
  CUresult begin_capture(Stream* stream, CUstreamCaptureMode mode);
  CUresult end_capture(Stream* stream, CUgraph* graph);
  void abandon_capture(const Stream& stream);      // its stream is destroyed
  CUresult check_unsafe();                         // for calls no capture allows
  CUresult check_blocking(Stream* stream);         // for queries and waits of a stream
  CUresult captured(Stream* stream, bool* taken);  // work: *taken if it goes into a capture,
  void add_node(Stream* stream, GraphNode node);   // which is done by this
  CUresult refuse_in_capture(Stream* stream, const char* why);  // spoils the stream's
  bool implicated(const Stream& stream) const;  // legacy, while a blocking stream is captured
  CUresult join_capture(Stream* stream, const Event& event, bool* taken);

  // The tick clock (option complete_after).
  void tick_work(Stream* stream);
  void tick_record(Event* event, Stream* stream);
  bool tick_complete(const Stream& stream, Contexts* contexts);
  void tick_wait(Stream* stream, const Event& event);
  bool tick_complete(const Event& event, Contexts* contexts);
  void tick_synchronize(Stream* stream, uint64_t seq);
  void tick_synchronize(Context* context) { context->synced = sequence_; }
  uint64_t sequence() const { return sequence_; }

 private:
  bool tick_passed(uint64_t tick) const;
  uint64_t default_stream(const Context& context, bool per_thread);

  uint64_t sequence_ = 0;                              // grows with every piece of work enqueued
  std::vector<std::pair<uint64_t, uint64_t>> legacy_;  // context, stream
  std::vector<CapturePtr> captures_;                   // under way
  uint64_t capture_ids_ = 0;
  uint64_t numbers_ = 0;
};

// The calling thread's capture mode (cuThreadExchangeStreamCaptureMode).
extern thread_local CUstreamCaptureMode capture_mode;

}  // namespace simcuda
