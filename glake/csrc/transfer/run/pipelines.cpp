#include "transfer/run/pipelines.h"

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

PipelinePool::Key PipelinePool::key_of(const Pipeline& line) {
  Key devices;
  for (const Pipeline::Step& step : line.steps) devices.push_back(step.device);
  return devices;
}

Pipeline PipelinePool::take(const Path& path, size_t buffers, Bytes bytes) {
  Key devices;
  for (const Hop& hop : path.hops) devices.push_back(ChunkHop::device_of(hop));
  Pipeline line = spare(devices);
  try {
    if (line.steps.empty()) {
      for (const int device : devices) {
        line.steps.emplace_back();
        line.steps.back().device = device;
      }
      line.between.resize(devices.size() - 1);
    }
    if (line.ended.back() == 0) {
      const Status s = make_streams(&line);
      if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "a stream for a path: " + driver_.describe(s));
    }
    fill(&line, path, buffers, bytes);
  } catch (const Error&) {
    give(std::move(line));
    throw;
  }
  return line;
}

// Returns a pipeline without steps if there is none.
Pipeline PipelinePool::spare(const Key& devices) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::vector<Pipeline>& spare = spare_[devices];
  if (spare.empty()) return {};
  Pipeline line = std::move(spare.back());
  spare.pop_back();
  return line;
}

void PipelinePool::fill(Pipeline* line, const Path& path, size_t buffers, Bytes bytes) {
  line->buffers = buffers;
  for (size_t hop = 0; hop < line->between.size(); ++hop) {
    std::vector<Pipeline::Buffer>& between = line->between[hop];
    if (between.size() < buffers) between.resize(buffers);
    std::vector<Slot> slots = slots_.lend_several(path.hops[hop].to, bytes, buffers);
    for (size_t i = 0; i < buffers; ++i) {
      const Status s = make_events(line, hop, &between[i]);
      if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "an event for a path: " + driver_.describe(s));
      between[i].slot = std::move(slots[i]);
    }
  }
}

// Makes those streams that the pipeline does not have yet. The next functions do the same for their
// parts.
Status PipelinePool::make_streams(Pipeline* line) {
  for (Pipeline::Step& step : line->steps) {
    DeviceScope scope(driver_, step.device);
    Status s = scope.status();
    for (size_t i = 0; s.ok() && i < TransferTuning::kFlows; ++i) {
      if (step.streams[i] == 0) s = driver_.create_stream(&step.streams[i]);
    }
    for (EventId& event : step.around) {
      if (s.ok() && event == 0) s = driver_.create_timer(step.device, &event);
    }
    if (!s.ok()) return s;
  }
  Status s;
  for (size_t i = 0; s.ok() && i < TransferTuning::kFlows; ++i) {
    if (line->ended[i] == 0) s = driver_.create_timer(line->steps.back().device, &line->ended[i]);
  }
  return s;
}

Status PipelinePool::make_events(Pipeline* line, size_t hop, Pipeline::Buffer* buffer) {
  Status s;
  if (buffer->filled == 0) s = driver_.create_event(line->steps[hop].device, &buffer->filled);
  if (s.ok() && buffer->emptied == 0) {
    s = driver_.create_event(line->steps[hop + 1].device, &buffer->emptied);
  }
  return s;
}

void PipelinePool::give(Pipeline line) {
  for (auto& between : line.between) {
    for (Pipeline::Buffer& buffer : between) buffer.slot.reset();
  }
  line.kernels.clear();
  line.buffers = line.chunks = 0;
  const Key devices = key_of(line);
  const bool whole = line.ended.back() != 0;
  if (!whole && destroy(&line).ok()) return;
  std::lock_guard<std::mutex> guard(mutex_);
  spare_[devices].push_back(std::move(line));
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
  for (Pipeline::Step& step : line->steps) {
    for (StreamHandle& stream : step.streams) {
      const StreamHandle old = std::exchange(stream, 0);
      if (old == 0) continue;
      const Status s = driver_.destroy_stream(old);
      if (s.ok()) continue;
      stream = old;
      return s;
    }
  }
  Status s;
  for (Pipeline::Step& step : line->steps) {
    for (EventId& event : step.around) {
      if (s.ok()) s = destroy_event(driver_, &event);
    }
  }
  for (auto& between : line->between) {
    for (Pipeline::Buffer& buffer : between) {
      if (s.ok()) s = destroy_event(driver_, &buffer.filled);
      if (s.ok()) s = destroy_event(driver_, &buffer.emptied);
    }
  }
  for (EventId& event : line->ended) {
    if (s.ok()) s = destroy_event(driver_, &event);
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
