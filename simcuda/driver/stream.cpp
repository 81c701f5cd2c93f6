// Streams, events, and the tick clock of phantom replays.
#include "stream.h"

#include <algorithm>

#include "options.h"
#include "per_thread.h"

namespace simcuda {
namespace {

// Each thread's default streams, by context. A handle of an earlier driver is simply not found.
std::vector<std::pair<uint64_t, uint64_t>>& per_thread_streams() {
  return simcuda::per_thread<std::vector<std::pair<uint64_t, uint64_t>>, Streams>();
}

}  // namespace

uint64_t Streams::create(const Context& context, unsigned flags, int priority) {
  Stream stream;
  stream.device = context.device;
  stream.context = context.id;
  stream.flags = flags;
  stream.priority = priority;
  stream.number = ++numbers_;
  const uint64_t id = streams.add(std::move(stream));
  streams.find(id)->id = id;
  return id;
}

uint64_t Streams::default_stream(const Context& context, bool per_thread) {
  auto& known = per_thread ? per_thread_streams() : legacy_;
  for (auto& [owner, stream] : known) {
    if (owner == context.id && streams.find(stream) != nullptr) return stream;
  }
  known.emplace_back(context.id, create(context, CU_STREAM_DEFAULT, 0));
  streams.find(known.back().second)->legacy = !per_thread;
  return known.back().second;
}

Stream* Streams::resolve(CUstream handle, const Context* current) {
  const bool per_thread = handle == CU_STREAM_PER_THREAD;
  if (handle != nullptr && handle != CU_STREAM_LEGACY && !per_thread) {
    return streams.find(reinterpret_cast<uint64_t>(handle));
  }
  return current == nullptr ? nullptr : streams.find(default_stream(*current, per_thread));
}

Stream* Streams::legacy_of(uint64_t context) {
  for (const auto& [owner, stream] : legacy_) {
    if (owner == context) return streams.find(stream);
  }
  return nullptr;
}

void Streams::forget(uint64_t context) {
  std::vector<uint64_t> gone;
  streams.for_each([&](uint64_t id, Stream& stream) {
    if (stream.context == context) gone.push_back(id);
  });
  for (const uint64_t id : gone) {
    abandon_capture(*streams.find(id));
    streams.remove(id);
  }
  gone.clear();
  events.for_each([&](uint64_t id, Event& event) {
    if (event.context == context) gone.push_back(id);
  });
  for (const uint64_t id : gone) events.remove(id);
}

void Streams::tick_work(Stream* stream) {
  stream->last_seq = ++sequence_;
  stream->last_tick = ticks.load(std::memory_order_relaxed);
}

void Streams::tick_record(Event* event, Stream* stream) {
  tick_work(stream);
  event->recorded = true;
  event->op = nullptr;
  event->capture = nullptr;
  event->stream = stream->id;
  event->seq = stream->last_seq;
  event->tick = stream->last_tick;
}

bool Streams::tick_passed(uint64_t tick) const {
  const int64_t after = complete_after().load(std::memory_order_relaxed);
  const uint64_t delay = after == kAuto ? 0 : static_cast<uint64_t>(after);
  return after != -1 && ticks.load(std::memory_order_relaxed) >= tick + delay;
}

bool Streams::tick_complete(const Event& event, Contexts* contexts) {
  if (!event.recorded || tick_passed(event.tick)) return true;
  const Stream* stream = streams.find(event.stream);
  if (stream != nullptr && event.seq <= stream->synced) return true;
  const Context* context = contexts->find(event.context);
  return context == nullptr || event.seq <= context->synced;
}

bool Streams::tick_complete(const Stream& stream, Contexts* contexts) {
  if (stream.last_seq <= stream.synced || tick_passed(stream.last_tick)) return true;
  const Context* context = contexts->find(stream.context);
  return context == nullptr || stream.last_seq <= context->synced;
}

void Streams::tick_wait(Stream* stream, const Event& event) {
  if (!event.recorded || event.stream == stream->id) return;
  const int64_t after = complete_after().load(std::memory_order_relaxed);
  auto& waits = stream->waits;
  if (after >= 0 && waits.size() >= 64) {  // drop what time alone has completed
    waits.erase(std::remove_if(waits.begin(), waits.end(),
                               [&](const Stream::Wait& wait) { return tick_passed(wait.tick); }),
                waits.end());
  }
  tick_work(stream);
  waits.push_back({stream->last_seq, event.stream, event.seq, event.tick});
}

void Streams::tick_synchronize(Stream* stream, uint64_t seq) {
  if (seq <= stream->synced) return;
  stream->synced = seq;
  auto& waits = stream->waits;
  const auto end = std::find_if(waits.begin(), waits.end(),
                                [&](const Stream::Wait& wait) { return wait.at > seq; });
  const std::vector<Stream::Wait> done(waits.begin(), end);
  waits.erase(waits.begin(), end);
  for (const Stream::Wait& wait : done) {
    Stream* other = streams.find(wait.stream);
    if (other != nullptr) tick_synchronize(other, wait.seq);
  }
}

}  // namespace simcuda
