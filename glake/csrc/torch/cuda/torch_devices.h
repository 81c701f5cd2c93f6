// The devices that torch names: how many it knows, and which of them were ever used. Only used ones
// are opened.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "torch/cuda/routes.h"

namespace glake::adapter {

class TorchDevices {
 public:
  // torch says how many there are when it initialises CUDA. That opens no driver yet.
  void init(int count);
  bool initialized() const { return known_.load() > 0; }
  c10::DeviceIndex checked(c10::DeviceIndex device) const;  // throws if there is no such device
  // From now on starts(device) is called before the first use of each device.
  void on_first_use(std::function<void(c10::DeviceIndex)> starts) { starts_ = std::move(starts); }
  // Every allocation calls this, so the lock is taken only at the first.
  void use(int device) {
    if (!used(device)) use_first(device);
  }
  bool used(int device) const { return (used_.load(std::memory_order_relaxed) >> device & 1) != 0; }
  int count() const;  // devices that torch knows, up to the last one in use

 private:
  void use_first(int device);
  std::function<void(c10::DeviceIndex)> starts_;
  std::mutex starting_;  // one device starts at a time
  std::atomic<int> known_{0};
  std::atomic<uint64_t> used_{0};  // one bit for each device
};

}  // namespace glake::adapter
