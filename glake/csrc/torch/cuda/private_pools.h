// Private pools, of CUDA graphs and torch.cuda.MemPool: which allocations go to which pool, and
// what a pool may do. A pool with an allocator of its own is one of ForeignPools.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "torch/cuda/foreign.h"
#include "torch/cuda/torch_devices.h"

namespace glake::adapter {

class PrivatePools {
 public:
  PrivatePools(const CudaLibrary& library, TorchDevices& devices, ForeignPools& foreign)
      : library_(library), devices_(devices), foreign_(foreign) {}

  // Adds a user of the pool. `allocator` may be null.
  void retain(c10::DeviceIndex device, c10::MempoolId_t pool,
              const ForeignPools::Allocator& allocator);
  void release(c10::DeviceIndex device, c10::MempoolId_t pool);
  int uses(c10::DeviceIndex device, c10::MempoolId_t pool) const;
  bool had_any() const { return had_any_.load(); }  // whether a pool of glake's own memory ever was

  // From now on allocations on streams for which the filter is true go to the pool.
  void begin(c10::DeviceIndex device, c10::MempoolId_t pool,
             std::function<bool(cudaStream_t)> filter);
  void end(c10::DeviceIndex device, c10::MempoolId_t pool);
  // kNoPool: the device's own memory.
  c10::MempoolId_t of(int device, cudaStream_t stream) const {
    return routes_.pool(device, stream);
  }

  // glake itself sees which streams are captured. This count keeps foreign pools from waiting for
  // the device during a capture, which would end it.
  void capture_begins(c10::DeviceIndex device);
  void capture_ends(c10::DeviceIndex device);
  bool capturing(int device) const;

  void set_use_on_oom(c10::DeviceIndex device, c10::MempoolId_t pool, bool value);
  void set_no_split(c10::DeviceIndex device, c10::MempoolId_t pool);

  // Whether these are exactly the pool's live blocks. Throws if there is no such pool.
  bool live_are(c10::DeviceIndex device, c10::MempoolId_t pool,
                const std::unordered_set<void*>& expected) const;

 private:
  void set_flag(c10::DeviceIndex device, c10::MempoolId_t pool, unsigned flag, bool value);

  const CudaLibrary& library_;
  TorchDevices& devices_;
  ForeignPools& foreign_;
  Routes<cudaStream_t> routes_;
  std::array<std::atomic<int>, kMaxDevices> captures_{};
  std::atomic<bool> had_any_{false};
  std::mutex mutex_;                                            // guards flags_
  std::map<std::pair<int, c10::MempoolId_t>, unsigned> flags_;  // of glake's own pools in use
};

}  // namespace glake::adapter
