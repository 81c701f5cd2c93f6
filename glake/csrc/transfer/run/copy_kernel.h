// The kernel that copies blocks (kernels/copy_blocks.cu), as each GPU has it: loaded at its first
// use, which takes the driver's compiler a moment, and kept until the engine closes.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "driver/driver.h"
#include "transfer/run/kernels/copy_blocks.h"

namespace glake::transfer {

class CopyKernel {
 public:
  explicit CopyKernel(Driver& driver) : driver_(driver) {}
  CopyKernel(const CopyKernel&) = delete;
  CopyKernel& operator=(const CopyKernel&) = delete;

  // Whether the GPU runs it. A DeviceScope of the GPU is open.
  bool ready(int gpu);
  // Copies the blocks of a table in pinned host memory, which stays as it is until they are done.
  // In no order among themselves; they do not overlap.
  Status launch(int gpu, Address table, size_t count, StreamHandle stream);
  uint64_t launches() const { return launches_.load(); }
  // Why GPUs do without it; empty: none has to.
  std::string why() const;
  // Unloads it. Throws Error (GLAKE_DRIVER_ERROR), and may be tried again.
  void close();

 private:
  struct Loaded {
    Kernel kernel;
    std::string why;  // it is not there
  };
  Driver& driver_;
  mutable std::mutex mutex_;
  std::map<int, Loaded> loaded_;
  std::atomic<uint64_t> launches_{0};
};

}  // namespace glake::transfer
