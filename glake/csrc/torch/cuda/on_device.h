// The calling thread's current device, and a scope that sets another one and restores it at the
// end. (c10's own guard would bring in the whole runtime.)
#pragma once

#include "torch/cuda/version.h"

namespace glake::adapter {

using c10::DeviceIndex;

// c10's function of this name also asks each time whether an assertion of a kernel has failed. An
// allocation should not report that, and asking takes as long as asking for the device.
inline DeviceIndex current_device() {
  DeviceIndex device = -1;
  const cudaError_t status = c10::cuda::GetDevice(&device);
  if (C10_UNLIKELY(status != cudaSuccess)) C10_CUDA_CHECK(status);
  return device;
}

class OnDevice {
 public:
  explicit OnDevice(int device)
      : before_(c10::cuda::ExchangeDevice(static_cast<c10::DeviceIndex>(device))) {}
  ~OnDevice() { (void)c10::cuda::SetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  c10::DeviceIndex before_;
};

}  // namespace glake::adapter
