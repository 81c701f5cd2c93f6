// torch's snapshots: the segments of all devices with their blocks, and the events of the history.
#pragma once

#include "torch/cuda/foreign.h"
#include "torch/cuda/history.h"
#include "torch/cuda/torch_devices.h"

namespace glake::adapter {

class Snapshots {
 public:
  Snapshots(const CudaLibrary& library, const TorchDevices& devices, const ForeignPools& foreign,
            const History& history)
      : library_(library), devices_(devices), foreign_(foreign), history_(history) {}

  // Takes a snapshot of one pool, or with kNoPool of all memory. `traces`: with the history's
  // events.
  native::SnapshotInfo take(c10::MempoolId_t pool, bool traces) const;

 private:
  const CudaLibrary& library_;
  const TorchDevices& devices_;
  const ForeignPools& foreign_;
  const History& history_;
};

}  // namespace glake::adapter
