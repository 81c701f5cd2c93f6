// Checkpoints of private pools. Cudagraph trees take and restore them.
#pragma once

#include <memory>
#include <vector>

#include "torch/cuda/foreign.h"
#include "torch/cuda/torch_devices.h"

namespace glake::adapter {

class PoolCheckpoints {
 public:
  using State = std::shared_ptr<native::AllocatorState>;
  // The blocks that were freed and allocated to restore a checkpoint.
  struct Changes {
    std::vector<void*> freed, allocated;
  };

  PoolCheckpoints(const CudaLibrary& library, const TorchDevices& devices,
                  const ForeignPools& foreign)
      : library_(library), devices_(devices), foreign_(foreign) {}

  State take(c10::DeviceIndex device, c10::MempoolId_t pool) const;
  Changes set_back(c10::DeviceIndex device, const State& state) const;

 private:
  struct Checkpoint;

  const CudaLibrary& library_;
  const TorchDevices& devices_;
  const ForeignPools& foreign_;
};

}  // namespace glake::adapter
