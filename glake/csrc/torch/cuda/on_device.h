// The current device, set back at the end. (c10's own guard would bring in the whole runtime.)
#pragma once

#include "torch/cuda/version.h"

namespace glake::adapter {

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
