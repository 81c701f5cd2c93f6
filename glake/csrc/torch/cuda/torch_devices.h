// The devices that torch names: how many it knows, and which of them were ever used. Only those are
// opened.
#pragma once

#include <atomic>
#include <cstdint>

#include "torch/cuda/routes.h"

namespace glake::adapter {

class TorchDevices {
 public:
  // torch tells how many there are when it initialises CUDA; no driver is opened yet.
  void init(int count);
  bool initialized() const { return known_.load() > 0; }
  c10::DeviceIndex checked(c10::DeviceIndex device) const;  // throws for no such device
  // Every allocation comes here, so a locked instruction is made only once.
  void use(int device) {
    if (!used(device)) used_.fetch_or(uint64_t{1} << device, std::memory_order_relaxed);
  }
  bool used(int device) const { return (used_.load(std::memory_order_relaxed) >> device & 1) != 0; }
  int count() const;  // of those that torch knows, and up to the last one in use

 private:
  std::atomic<int> known_{0};
  std::atomic<uint64_t> used_{0};  // a bit each
};

}  // namespace glake::adapter
