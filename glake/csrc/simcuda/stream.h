// Streams and events as objects, and the tick clock: how they complete in phantom replays.
#pragma once

#include <atomic>

#include "context.h"
#include "types.h"

namespace simcuda {

struct Stream {
  int device = -1;
  uint64_t context = 0;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;      // its handle
  uint64_t synced = 0;  // tick clock: work up to this sequence number has been waited for
  // Tick clock: waiting for this stream also waits for these. Ordered by `at`.
  struct Wait {
    uint64_t at, stream, seq, tick;
  };
  std::vector<Wait> waits;
};

struct Event {
  uint64_t context = 0;
  unsigned flags = 0;
  bool recorded = false;
  bool captured = false;
  uint64_t stream = 0, seq = 0, tick = 0;  // of the last record, tick clock
};

class Streams {
 public:
  Slots<Stream, 3> streams;
  Slots<Event, 4> events;
  std::atomic<uint64_t> ticks{0};

  uint64_t create(const Context& context, unsigned flags, int priority);
  // NULL, the legacy and the per-thread handles included; nullptr: no such stream.
  Stream* resolve(CUstream handle, const Context* current);
  Event* find(CUevent handle) { return events.find(reinterpret_cast<uint64_t>(handle)); }

  // The tick clock (option complete_after).
  void tick_record(Event* event, const Stream& stream);
  void tick_wait(Stream* stream, const Event& event);
  bool tick_complete(const Event& event, Contexts* contexts);
  void tick_synchronize(Stream* stream, uint64_t seq);
  void tick_synchronize(Context* context) { context->synced = sequence_; }
  uint64_t sequence() const { return sequence_; }

 private:
  uint64_t default_stream(const Context& context, bool per_thread);

  uint64_t sequence_ = 0;  // grows with every piece of work enqueued
  std::vector<std::pair<uint64_t, uint64_t>> legacy_;  // context, stream
};

}  // namespace simcuda
