// What torch asks and sets of a device's memory as a whole: how much it may be, what is free and
// cached, and which devices reach it.
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

  double fraction(c10::DeviceIndex device) const;
  void set_fraction(double fraction, c10::DeviceIndex device);
  std::pair<size_t, size_t> info(c10::DeviceIndex device) const;  // free, and in all
  // The largest block that could be had, where `at_least` is known of already (0: it is not).
  size_t largest(c10::DeviceIndex device, size_t at_least);
  std::vector<native::StreamSegmentSize> segment_sizes(c10::DeviceIndex device) const;

  // Gives what is cached back to the driver, on every device: of one pool, or (kNoPool) of all but
  // those in use.
  void empty_cache(c10::MempoolId_t pool);
  // torch's direction: work on `device` may then reach memory of `to`.
  void enable_peer_access(c10::DeviceIndex device, c10::DeviceIndex to);

 private:
  const CudaLibrary& library_;
  TorchDevices& devices_;
  const PrivatePools& pools_;
  ForeignPools& foreign_;
  std::array<std::atomic<double>, kMaxDevices> fractions_;  // as asked for; negative: never
};

}  // namespace glake::adapter
