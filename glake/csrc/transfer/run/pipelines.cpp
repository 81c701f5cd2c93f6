#include "transfer/run/pipelines.h"

#include <algorithm>
#include <utility>

#include "driver/device_scope.h"

namespace glake::transfer {
namespace {

Status destroy_event(Driver& driver, EventId* event) {
  if (*event == 0) return {};
  const Status s = driver.destroy_event(*event);
  if (s.ok()) *event = 0;
  return s;
}

}  // namespace

bool Pipeline::on_way(const Path& path) const {
  if (steps.size() != path.hops.size()) return false;
  for (size_t hop = 0; hop < steps.size(); ++hop) {
    if (steps[hop].device != ChunkHop::device_of(path.hops[hop])) return false;
  }
  for (size_t hop = 0; hop < between.size(); ++hop) {
    if (!(between[hop].place == path.hops[hop].to)) return false;
  }
  return true;
}

bool Pipeline::fits(const Path& path, const Use& use) const {
  const auto large = [&](const Between& room) { return room.bytes >= use.bytes; };
  return on_way(path) && joined == use.joined && std::all_of(between.begin(), between.end(), large);
}

PipelinePool::Key PipelinePool::key_of(const Pipeline& line) {
  Key key{{}, line.joined};
  for (const Pipeline::Step& step : line.steps) key.first.push_back(step.device);
  return key;
}

PipelinePtr PipelinePool::take(const Path& path, const Pipeline::Use& use) {
  Key key{{}, use.joined};
  for (const Hop& hop : path.hops) key.first.push_back(ChunkHop::device_of(hop));
  PipelinePtr line(new Pipeline(spare(key)), [this](Pipeline* last) {
    give(std::move(*last));
    delete last;
  });
  if (line->steps.empty()) {
    for (const int device : key.first) line->steps.push_back({device, {}});
    line->between.resize(path.hops.size() - 1);
    line->joined = use.joined;
  }
  for (size_t hop = 0; hop < line->between.size(); ++hop) {
    line->between[hop].place = path.hops[hop].to;
  }
  widen(line.get(), use);
  return line;
}

size_t PipelinePool::lent() {
  std::lock_guard<std::mutex> guard(mutex_);
  return lent_;
}

// Returns a pipeline without steps if there is none.
Pipeline PipelinePool::spare(const Key& key) {
  std::lock_guard<std::mutex> guard(mutex_);
  ++lent_;
  std::vector<Pipeline>& spare = spare_[key];
  if (spare.empty()) return {};
  Pipeline line = std::move(spare.back());
  spare.pop_back();
  return line;
}

void PipelinePool::widen(Pipeline* line, const Pipeline::Use& use) {
  const Status made = make_streams(line, use.flows);
  const auto none = [](const Pipeline::Step& step) { return step.streams.empty(); };
  if (std::any_of(line->steps.begin(), line->steps.end(), none)) {
    throw Error(GLAKE_DRIVER_ERROR, "a stream for a path: " + driver_.describe(made));
  }
  for (size_t hop = 0; hop < line->between.size(); ++hop) {
    Pipeline::Between& room = line->between[hop];
    const size_t wanted = line->buffers_behind(hop, use);
    if (room.lent >= wanted) continue;
    if (room.buffers.size() < wanted) room.buffers.resize(wanted);
    std::vector<Slot> slots = slots_.lend_several(room.place, use.bytes, wanted - room.lent);
    for (Slot& slot : slots) {
      Pipeline::Buffer& buffer = room.buffers[room.lent];
      const Status s = make_events(line, hop, &buffer);
      if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "an event for a path: " + driver_.describe(s));
      room.bytes = room.lent == 0 ? slot.bytes() : std::min(room.bytes, slot.bytes());
      buffer.slot = std::move(slot);
      ++room.lent;
    }
  }
}

// Makes those streams that the pipeline does not have yet. Returns the first refusal. A hop may
// have fewer streams then.
Status PipelinePool::make_streams(Pipeline* line, size_t count) {
  Status first;
  for (size_t hop = 0; hop < line->steps.size(); ++hop) {
    Pipeline::Step& step = line->steps[hop];
    if (line->follows_in_stream(hop)) {
      step.streams = line->steps[hop - 1].streams;
      continue;
    }
    if (step.streams.size() >= count) continue;
    DeviceScope scope(driver_, step.device);
    Status s = scope.status();
    while (s.ok() && step.streams.size() < count) {
      StreamHandle stream = 0;
      s = driver_.create_stream(&stream);
      if (s.ok()) step.streams.push_back(stream);
    }
    if (first.ok()) first = s;
  }
  return first;
}

Status PipelinePool::make_events(Pipeline* line, size_t hop, Pipeline::Buffer* buffer) {
  Status s;
  if (line->follows_in_stream(hop + 1)) return s;
  if (buffer->filled == 0) s = driver_.create_event(line->steps[hop].device, &buffer->filled);
  if (s.ok() && buffer->emptied == 0) {
    s = driver_.create_event(line->steps[hop + 1].device, &buffer->emptied);
  }
  return s;
}

// Takes a pipeline back that no work uses.
void PipelinePool::give(Pipeline line) {
  for (Pipeline::Between& room : line.between) {
    for (Pipeline::Buffer& buffer : room.buffers) buffer.slot.reset();
    room.lent = 0;
  }
  const Key key = key_of(line);
  const bool whole = !line.steps.empty() && !line.steps.back().streams.empty();
  const bool gone = !whole && destroy(&line).ok();
  std::lock_guard<std::mutex> guard(mutex_);
  --lent_;
  if (!gone) spare_[key].push_back(std::move(line));
}

Status PipelinePool::timer(int device, EventId* event) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<EventId>& spare = timers_[device];
    if (!spare.empty()) {
      *event = spare.back();
      spare.pop_back();
      return {};
    }
  }
  return driver_.create_timer(device, event);
}

// The pool may be closed already, because a caller may still hold a transfer when the engine
// closes.
void PipelinePool::keep_timer(int device, EventId event) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (closed_ && driver_.destroy_event(event).ok()) return;
  timers_[device].push_back(event);
}

// What the driver refuses to take back stays in the pipeline.
Status PipelinePool::destroy(Pipeline* line) {
  if (line->joined) line->steps[1].streams.clear();
  for (Pipeline::Step& step : line->steps) {
    for (; !step.streams.empty(); step.streams.pop_back()) {
      const Status s = driver_.destroy_stream(step.streams.back());
      if (!s.ok()) return s;
    }
  }
  Status s;
  for (Pipeline::Between& room : line->between) {
    for (Pipeline::Buffer& buffer : room.buffers) {
      if (s.ok()) s = destroy_event(driver_, &buffer.filled);
      if (s.ok()) s = destroy_event(driver_, &buffer.emptied);
    }
  }
  return s;
}

void PipelinePool::close() {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [devices, lines] : spare_) {
    for (; !lines.empty(); lines.pop_back()) {
      const Status s = destroy(&lines.back());
      if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "a path's streams: " + driver_.describe(s));
    }
  }
  for (auto& [device, timers] : timers_) {
    for (; !timers.empty(); timers.pop_back()) {
      const Status s = driver_.destroy_event(timers.back());
      if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "a transfer's events: " + driver_.describe(s));
    }
  }
  closed_ = true;
}

}  // namespace glake::transfer
