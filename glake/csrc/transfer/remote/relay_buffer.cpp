#include "transfer/remote/relay_buffer.h"

#include "driver/device_scope.h"

namespace glake::transfer {

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
