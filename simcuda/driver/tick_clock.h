// The tick clock (option complete_after). It completes work in phantom replays.
#pragma once

#include <atomic>

#include "context.h"
#include "stream.h"

namespace simcuda {

class TickClock {
 public:
  TickClock(Streams* streams, Contexts* contexts) : streams_(streams), contexts_(contexts) {}

  void add(uint64_t ticks) { ticks_.fetch_add(ticks, std::memory_order_relaxed); }
  uint64_t ticks() const { return ticks_.load(std::memory_order_relaxed); }

  void work(Stream* stream);
  void record(Event* event, Stream* stream);
  void wait(Stream* stream, const Event& event);
  bool complete(const Stream& stream);
  bool complete(const Event& event);
  // The host has waited for a stream's work up to a number, for all work of a stream, or for all
  // work of a context.
  void synchronize(Stream* stream, uint64_t seq);
  void synchronize(Stream* stream) { synchronize(stream, sequence_); }
  void synchronize(Context* context) { context->synced = sequence_; }

 private:
  bool passed(uint64_t tick) const;

  Streams* const streams_;
  Contexts* const contexts_;
  std::atomic<uint64_t> ticks_{0};
  uint64_t sequence_ = 0;  // rises with every piece of enqueued work
};

}  // namespace simcuda
