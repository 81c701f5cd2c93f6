// The devices that torch names: how many it knows, and which of them were ever used. Only used ones
// are opened.
#pragma once

#include <atomic>
#include <cstdint>

#include "torch/cuda/routes.h"

namespace glake::adapter {

class TorchDevices {
 public:
  // torch says how many there are when it initialises CUDA. That opens no driver yet.
  void init(int count);
  bool initialized() const { return known_.load() > 0; }
  c10::DeviceIndex checked(c10::DeviceIndex device) const;  // throws if there is no such device
  // Every allocation calls this, so the locked instruction is made only at the first.
  void use(int device) {
    if (!used(device)) used_.fetch_or(uint64_t{1} << device, std::memory_order_relaxed);
  }
  bool used(int device) const { return (used_.load(std::memory_order_relaxed) >> device & 1) != 0; }
  int count() const;  // devices that torch knows, up to the last one in use

 private:
  std::atomic<int> known_{0};
  std::atomic<uint64_t> used_{0};  // one bit for each device
};

}  // namespace glake::adapter
