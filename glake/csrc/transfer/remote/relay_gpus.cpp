#include "transfer/remote/relay_gpus.h"

#include "driver/device_scope.h"

namespace glake::transfer {

RelayGpus::~RelayGpus() {
  for (const auto& [gpu, bytes] : open_) driver_->detach(gpu);
}

void RelayGpus::open(int gpu) {
  if (gpu < 0 || gpu >= count()) {
    throw Error(GLAKE_INVALID_DEVICE, "the relay service sees no " + device_text(gpu));
  }
  std::lock_guard<std::mutex> guard(mutex_);
  if (open_.count(gpu) != 0) return;
  Status s = driver_->attach(gpu);
  if (s.ok()) s = driver_->choose_traits(gpu);
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, device_text(gpu) + ": " + driver_->describe(s));
  if (!driver_->traits(gpu).shareable) {
    driver_->detach(gpu);
    throw Error(GLAKE_COPY_REFUSED, device_text(gpu) + "'s memory cannot be shared as descriptors");
  }
  open_[gpu] = 0;
}

int RelayGpus::any() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (!open_.empty()) return open_.begin()->first;
  }
  open(0);
  return 0;
}

std::vector<int> RelayGpus::reach(int gpu) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::vector<int> found;
  for (const auto& [other, bytes] : open_) {
    bool reaches = other == gpu;
    if (!reaches && !driver_->can_access_peer(other, gpu, &reaches).ok()) reaches = false;
    if (reaches) found.push_back(other);
  }
  return found;
}

void RelayGpus::take(int gpu, Bytes bytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  Bytes& used = open_.at(gpu);
  if (used + bytes > kAllBuffers) {
    throw Error(GLAKE_OUT_OF_MEMORY, "all " + std::to_string(kAllBuffers / kMiB) +
                                         " MiB of buffers on " + device_text(gpu) +
                                         " are other clients'");
  }
  used += bytes;
}

void RelayGpus::give(int gpu, Bytes bytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  open_.at(gpu) -= bytes;
}

RelayBuffer::RelayBuffer(RelayGpus& gpus, int gpu, Bytes bytes)
    : gpus_(gpus), gpu_(gpu), bytes_(bytes) {
  gpus_.take(gpu, bytes);
  try {
    map();
  } catch (const Error&) {
    drop();
    throw;
  }
}

RelayBuffer::~RelayBuffer() { drop(); }

void RelayBuffer::map() {
  Driver& driver = gpus_.driver();
  DeviceScope scope(driver, gpu_);
  Status s = scope.status();
  if (s.ok()) s = driver.create(gpu_, &handle_, bytes_);
  if (!s.ok()) handle_ = 0;
  if (s.ok()) s = driver.reserve(bytes_, &at_);
  if (s.ok()) s = driver.map(at_, handle_, bytes_);
  mapped_ = s.ok();
  if (s.ok()) return grant();
  throw Error(s.out_of_memory() ? GLAKE_OUT_OF_MEMORY : GLAKE_DRIVER_ERROR,
              "a relay's buffer on " + device_text(gpu_) + ": " + driver.describe(s));
}

void RelayBuffer::grant() {
  Driver& driver = gpus_.driver();
  const std::vector<int> reach = gpus_.reach(gpu_);
  DeviceScope scope(driver, gpu_);
  const Status s = scope.status().ok() ? driver.set_access(at_, bytes_, reach) : scope.status();
  if (s.ok()) return;
  throw Error(GLAKE_DRIVER_ERROR,
              "access to a relay's buffer on " + device_text(gpu_) + ": " + driver.describe(s));
}

void RelayBuffer::drop() {
  Driver& driver = gpus_.driver();
  DeviceScope scope(driver, gpu_);
  if (mapped_) driver.unmap(at_, bytes_);
  if (at_ != 0) driver.free_range(at_, bytes_);
  if (handle_ != 0) driver.release(handle_);
  gpus_.give(gpu_, bytes_);
}

Descriptor RelayBuffer::exported() {
  Driver& driver = gpus_.driver();
  DeviceScope scope(driver, gpu_);
  int fd = -1;
  const Status s = scope.status().ok() ? driver.export_fd(handle_, &fd) : scope.status();
  if (!s.ok()) {
    throw Error(GLAKE_COPY_REFUSED, "a relay's buffer is not to be shared: " + driver.describe(s));
  }
  return Descriptor(fd);
}

}  // namespace glake::transfer
