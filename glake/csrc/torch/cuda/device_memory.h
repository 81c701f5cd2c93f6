// What torch asks and sets about all of a device's memory: its limit, what is free and cached, and
// which devices reach it.
#pragma once

#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "torch/cuda/private_pools.h"
#include "torch/cuda/torch_devices.h"

namespace glake::adapter {

class DeviceMemory {
 public:
  DeviceMemory(const CudaLibrary& library, TorchDevices& devices, const PrivatePools& pools,
               ForeignPools& foreign);

  // Each device has this fraction from its first use on, until set_fraction() changes it.
  void start_with(double fraction);
  double fraction(c10::DeviceIndex device) const;
  void set_fraction(double fraction, c10::DeviceIndex device);
  std::pair<size_t, size_t> info(c10::DeviceIndex device) const;  // free, and in total
  // The largest block that is possible. `at_least` is a size that is known to be possible, or 0.
  size_t largest(c10::DeviceIndex device, size_t at_least);
  std::vector<native::StreamSegmentSize> segment_sizes(c10::DeviceIndex device) const;

  // Gives a pool's cached memory back to the driver, on every device. kNoPool stands for all pools
  // that are not in use.
  void empty_cache(c10::MempoolId_t pool);
  // In torch's direction: work on `device` can then reach memory of `to`.
  void enable_peer_access(c10::DeviceIndex device, c10::DeviceIndex to);

 private:
  void limit(double fraction, c10::DeviceIndex device);
  const CudaLibrary& library_;
  TorchDevices& devices_;
  const PrivatePools& pools_;
  ForeignPools& foreign_;
  std::array<std::atomic<double>, kMaxDevices> fractions_;  // as requested; negative: never set
};

}  // namespace glake::adapter
