#include "transfer/buffers/devices.h"

#include <algorithm>

#include "driver/device_scope.h"

namespace glake::transfer {

namespace {

std::atomic<uint64_t> engines{0};  // that the process has had

}  // namespace

Devices::Devices(Driver& driver, Allocator& allocator)
    : driver_(driver), allocator_(allocator), count_(driver.device_count()), number_(++engines) {
  const auto count = static_cast<size_t>(count_);
  streams_ = std::make_unique<std::atomic<StreamHandle>[]>(2 * count);
  opened_ = std::make_unique<std::atomic<bool>[]>(count);
  for (size_t i = 0; i < count; ++i) {
    streams_[2 * i] = streams_[2 * i + 1] = 0;
    opened_[i] = false;
  }
}

void Devices::require(int device, const char* what) const {
  if (device >= 0 && device < count_) return;
  throw Error(GLAKE_INVALID_DEVICE, "no " + device_text(device) + what + ": the driver has " +
                                        counted(static_cast<uint64_t>(count_), "device"));
}

void Devices::open(int device) {
  std::atomic<bool>& ready = opened_[static_cast<size_t>(device)];
  if (ready.load(std::memory_order_acquire)) return;
  allocator_.open_device(device);
  ready.store(true, std::memory_order_release);
}

int Devices::some(int named) {
  if (named >= 0 && named < count_) {
    open(named);
    return named;
  }
  for (int device = 0; device < count_; ++device) {
    if (opened_[static_cast<size_t>(device)].load(std::memory_order_acquire)) return device;
  }
  const int device = allocator_.used_device();
  open(device);
  return device;
}

bool Devices::reach(int gpu, int from) {
  if (gpu == from) return true;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto known = reached_.find({from, gpu});
    if (known != reached_.end()) return known->second;
  }
  bool reaches = false;
  if (!driver_.can_access_peer(from, gpu, &reaches).ok()) return false;
  if (reaches) {
    allocator_.enable_peer(gpu, from);
    const Status s = driver_.enable_peer(from, gpu);
    if (!s.ok()) refuse(gpu, from, driver_.describe(s));
  }
  std::lock_guard<std::mutex> guard(mutex_);
  reached_[{from, gpu}] = reaches;
  return reaches;
}

void Devices::try_reach(int gpu, int from) {
  if (gpu == from) return;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (reached_.count({from, gpu}) + refused_.count({from, gpu}) != 0) return;
  }
  try {
    reach(gpu, from);
  } catch (const Error& error) {
    refuse(gpu, from, error.what());
  }
}

void Devices::refuse(int gpu, int from, const std::string& why) {
  std::lock_guard<std::mutex> guard(mutex_);
  refused_[{from, gpu}] = why;
}

std::string Devices::refusals() {
  std::lock_guard<std::mutex> guard(mutex_);
  std::string text;
  for (const auto& [pair, why] : refused_) {
    text += (text.empty() ? "" : "; ") + device_text(pair.first) + " to memory of " +
            device_text(pair.second) + ": " + why;
  }
  return text;
}

bool Devices::reach(const Hop& hop) {
  return hop.reads ? reach(hop.from.gpu, hop.to.gpu) : reach(hop.to.gpu, hop.from.gpu);
}

void Devices::prepare(const Path& path) {
  const std::pair<std::string, bool> key{path.name, path.hops.front().reads};
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (prepared_.count(key) != 0) return;
  }
  for (const Hop& hop : path.hops) {
    for (int gpu : {hop.from.gpu, hop.to.gpu}) {
      if (gpu >= 0 && gpu < count_) open(gpu);
    }
    // Buffers of GPUs that the driver does not show are already mapped for this process's GPUs
    // (remote_link.h).
    if (std::max(hop.from.gpu, hop.to.gpu) >= count_) continue;
    if (hop.from.host() || hop.to.host() || hop.from.gpu == hop.to.gpu) continue;
    reach(hop);
  }
  std::lock_guard<std::mutex> guard(mutex_);
  prepared_.insert(key);
}

StreamHandle Devices::plain_stream(int device, bool outward) {
  std::atomic<StreamHandle>& known = streams_[2 * static_cast<size_t>(device) + outward];
  StreamHandle stream = known.load(std::memory_order_acquire);
  if (stream != 0) return stream;
  DeviceScope scope(driver_, device);
  Status s = scope.status();
  if (s.ok()) s = driver_.create_stream(&stream);
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "no stream for a copy: " + driver_.describe(s));
  StreamHandle none = 0;
  if (known.compare_exchange_strong(none, stream)) return stream;
  driver_.destroy_stream(stream);  // another thread was first
  return none;
}

void Devices::close() {
  for (size_t i = 0; i < 2 * static_cast<size_t>(count_); ++i) {
    const StreamHandle stream = streams_[i].load();
    if (stream == 0) continue;
    Status s = driver_.synchronize_stream(static_cast<int>(i / 2), stream);
    if (s.ok()) s = driver_.destroy_stream(stream);
    if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "a plain copy's stream: " + driver_.describe(s));
    streams_[i] = 0;
  }
}

}  // namespace glake::transfer
