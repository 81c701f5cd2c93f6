// For tensors that are sent to another process: makes the handle of a block, and finds the block of
// a handle.
#pragma once

#include <string>

#include "torch/cuda/torch_blocks.h"
#include "torch/cuda/torch_devices.h"

namespace glake::adapter {

class IpcHandles {
 public:
  IpcHandles(const CudaLibrary& library, TorchDevices& devices, TorchBlocks& blocks)
      : library_(library), devices_(devices), blocks_(blocks) {}

  std::string share(void* ptr);
  // Opens the block in this process. It lasts until close().
  void* open(const std::string& handle);
  void close(void* opened) { library_.ipc_close(opened); }

 private:
  const CudaLibrary& library_;
  TorchDevices& devices_;
  TorchBlocks& blocks_;
};

}  // namespace glake::adapter
