// torch's DeviceStats: glake's own numbers and the memory of foreign pools.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "torch/cuda/foreign.h"
#include "torch/cuda/oom_observers.h"
#include "torch/cuda/torch_devices.h"

namespace glake::adapter {

class DeviceStatistics {
 public:
  DeviceStatistics(const CudaLibrary& library, const TorchDevices& devices, ForeignPools& foreign,
                   OomObservers& observers)
      : library_(library), devices_(devices), foreign_(foreign), observers_(observers) {}

  // With `by_pool` it also says what each pool reserves, in those minors of torch that show it.
  caching::DeviceStats of(c10::DeviceIndex device, bool by_pool);
  void reset_accumulated(c10::DeviceIndex device);
  void reset_peaks(c10::DeviceIndex device);

 private:
  using StatArray = c10::CachingAllocator::StatArray;
  using Reserved = std::map<c10::MempoolId_t, std::array<int64_t, 3>>;  // by kind of block
  Reserved reserved_by_pool(int device, bool own) const;
  // Calls act(pool, its statistic) for each pool of the device.
  template <typename Act>
  void for_pools(int device, Act&& act);

  const CudaLibrary& library_;
  const TorchDevices& devices_;
  ForeignPools& foreign_;
  OomObservers& observers_;
  std::mutex mutex_;
  std::map<std::pair<int, c10::MempoolId_t>, StatArray> reserved_of_pool_;  // at the last look
};

}  // namespace glake::adapter
