// Streams, events, and the tick clock of phantom replays.
#include "stream.h"

#include <algorithm>

#include "options.h"

namespace simcuda {
namespace {

// Each thread's default streams, by context. A handle of an earlier driver is simply not found.
thread_local std::vector<std::pair<uint64_t, uint64_t>> per_thread_streams;

}  // namespace

uint64_t Streams::create(const Context& context, unsigned flags, int priority) {
  Stream stream;
  stream.device = context.device;
  stream.context = context.id;
  stream.flags = flags;
  stream.priority = priority;
  const uint64_t id = streams.add(std::move(stream));
  streams.find(id)->id = id;
  return id;
}

uint64_t Streams::default_stream(const Context& context, bool per_thread) {
  auto& known = per_thread ? per_thread_streams : legacy_;
  for (auto& [owner, stream] : known) {
    if (owner == context.id && streams.find(stream) != nullptr) return stream;
  }
  known.emplace_back(context.id, create(context, CU_STREAM_DEFAULT, 0));
  return known.back().second;
}

Stream* Streams::resolve(CUstream handle, const Context* current) {
  const bool per_thread = handle == CU_STREAM_PER_THREAD;
  if (handle != nullptr && handle != CU_STREAM_LEGACY && !per_thread) {
    return streams.find(reinterpret_cast<uint64_t>(handle));
  }
  return current == nullptr ? nullptr : streams.find(default_stream(*current, per_thread));
}

void Streams::tick_record(Event* event, const Stream& stream) {
  event->recorded = true;
  event->captured = false;
  event->stream = stream.id;
  event->seq = ++sequence_;
  event->tick = ticks.load(std::memory_order_relaxed);
}

bool Streams::tick_complete(const Event& event, Contexts* contexts) {
  if (!event.recorded) return true;
  const int64_t after = complete_after().load(std::memory_order_relaxed);
  const uint64_t delay = after == kAuto ? 0 : static_cast<uint64_t>(after);
  if (after != -1 && ticks.load(std::memory_order_relaxed) >= event.tick + delay) return true;
  const Stream* stream = streams.find(event.stream);
  if (stream != nullptr && event.seq <= stream->synced) return true;
  const Context* context = contexts->find(event.context);
  return context == nullptr || event.seq <= context->synced;
}

void Streams::tick_wait(Stream* stream, const Event& event) {
  if (!event.recorded || event.stream == stream->id) return;
  const int64_t after = complete_after().load(std::memory_order_relaxed);
  if (after >= 0) {  // drop what time alone has completed
    const uint64_t now = ticks.load(std::memory_order_relaxed);
    auto& waits = stream->waits;
    if (waits.size() >= 64) {
      waits.erase(std::remove_if(waits.begin(), waits.end(),
                                 [&](const Stream::Wait& wait) {
                                   return now >= wait.tick + static_cast<uint64_t>(after);
                                 }),
                  waits.end());
    }
  }
  stream->waits.push_back({++sequence_, event.stream, event.seq, event.tick});
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
