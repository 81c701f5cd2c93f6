#include "tick_clock.h"

#include <algorithm>
#include <vector>

#include "options.h"

namespace simcuda {

void TickClock::work(Stream* stream) {
  stream->last_seq = ++sequence_;
  stream->last_tick = ticks();
}

void TickClock::record(Event* event, Stream* stream) {
  work(stream);
  event->recorded = true;
  event->op = nullptr;
  event->capture = nullptr;
  event->stream = stream->id;
  event->seq = stream->last_seq;
  event->tick = stream->last_tick;
}

bool TickClock::passed(uint64_t tick) const {
  const int64_t after = complete_after().load(std::memory_order_relaxed);
  const uint64_t delay = after == kAuto ? 0 : static_cast<uint64_t>(after);
  return after != -1 && ticks() >= tick + delay;
}

bool TickClock::complete(const Event& event) {
  if (!event.recorded || passed(event.tick)) return true;
  const Stream* stream = streams_->find(event.stream);
  if (stream != nullptr && event.seq <= stream->synced) return true;
  const Context* context = contexts_->find(event.context);
  return context == nullptr || event.seq <= context->synced;
}

bool TickClock::complete(const Stream& stream) {
  if (stream.last_seq <= stream.synced || passed(stream.last_tick)) return true;
  const Context* context = contexts_->find(stream.context);
  return context == nullptr || stream.last_seq <= context->synced;
}

void TickClock::wait(Stream* stream, const Event& event) {
  if (!event.recorded || event.stream == stream->id) return;
  const int64_t after = complete_after().load(std::memory_order_relaxed);
  auto& waits = stream->waits;
  if (after >= 0 && waits.size() >= 64) {  // drop those that time alone has completed
    waits.erase(std::remove_if(waits.begin(), waits.end(),
                               [&](const Stream::Wait& wait) { return passed(wait.tick); }),
                waits.end());
  }
  work(stream);
  waits.push_back({stream->last_seq, event.stream, event.seq, event.tick});
}

void TickClock::synchronize(Stream* stream, uint64_t seq) {
  if (seq <= stream->synced) return;
  stream->synced = seq;
  auto& waits = stream->waits;
  const auto end = std::find_if(waits.begin(), waits.end(),
                                [&](const Stream::Wait& wait) { return wait.at > seq; });
  const std::vector<Stream::Wait> done(waits.begin(), end);
  waits.erase(waits.begin(), end);
  for (const Stream::Wait& wait : done) {
    Stream* other = streams_->find(wait.stream);
    if (other != nullptr) synchronize(other, wait.seq);
  }
}

}  // namespace simcuda
