#include "transfer/run/lanes.h"

#include <utility>

namespace glake::transfer {

Lane LanePool::take(const Path& path) {
  Key devices;
  for (const Hop& hop : path.hops) devices.push_back(ChunkHop::device_of(hop));
  {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<Lane>& spare = spare_[devices];
    if (!spare.empty()) {
      Lane lane = std::move(spare.back());
      spare.pop_back();
      return lane;
    }
  }
  return make(devices);
}

Lane LanePool::make(const Key& devices) {
  Lane lane;
  for (const int device : devices) {
    Lane::Step step;
    step.device = device;
    lane.steps.push_back(step);
  }
  for (size_t hop = 0; hop < devices.size(); ++hop) {
    const Status s = make_step(&lane, hop);
    if (s.ok()) continue;
    destroy(&lane);
    throw Error(GLAKE_DRIVER_ERROR, "a stream for a path: " + driver_.describe(s));
  }
  return lane;
}

Status LanePool::make_step(Lane* lane, size_t hop) {
  Lane::Step& step = lane->steps[hop];
  step.crossing = hop + 1 < lane->steps.size() && lane->steps[hop + 1].device != step.device;
  const bool follows = hop != 0 && lane->steps[hop - 1].device == step.device;
  Status s;
  if (follows) {
    step.stream = lane->steps[hop - 1].stream;
  } else {
    DeviceScope scope(driver_, step.device);
    s = scope.status().ok() ? driver_.create_stream(&step.stream) : scope.status();
  }
  if (s.ok()) s = driver_.create_event(step.device, &step.event);
  return s;
}

void LanePool::give(Lane lane) {
  lane.slots.clear();
  lane.kernels.clear();
  lane.begun = false;
  Key devices;
  for (const Lane::Step& step : lane.steps) devices.push_back(step.device);
  std::lock_guard<std::mutex> guard(mutex_);
  spare_[devices].push_back(std::move(lane));
}

// What the driver refuses to take back stays in the lane.
Status LanePool::destroy(Lane* lane) {
  StreamHandle last = 0;
  for (Lane::Step& step : lane->steps) {
    const StreamHandle stream = std::exchange(step.stream, 0);
    if (stream != 0 && stream != last) {
      const Status s = driver_.destroy_stream(stream);
      if (!s.ok()) {
        step.stream = stream;
        return s;
      }
      last = stream;
    }
    if (step.event == 0) continue;
    const Status s = driver_.destroy_event(step.event);
    if (!s.ok()) return s;
    step.event = 0;
  }
  return {};
}

void LanePool::close() {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [devices, lanes] : spare_) {
    for (; !lanes.empty(); lanes.pop_back()) {
      const Status s = destroy(&lanes.back());
      if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "a path's streams: " + driver_.describe(s));
    }
  }
}

}  // namespace glake::transfer
