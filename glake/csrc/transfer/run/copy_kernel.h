// The kernel that copies blocks (kernels/copy_blocks.cu). Each GPU loads it at its first use, which
// takes the driver's compiler a moment. It is kept until the engine closes.
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

  // Whether the GPU can run it. A DeviceScope of the GPU must be open.
  bool ready(int gpu);
  // Copies the blocks of a table in pinned host memory. The table must not change until the copies
  // are done. The copies have no order among themselves, and the blocks must not overlap.
  Status launch(int gpu, Address table, size_t count, StreamHandle stream);
  uint64_t launches() const { return launches_.load(); }
  // Why some GPUs do not have it; empty: no GPU that tried lacks it.
  std::string why() const;
  // Unloads it. Throws Error (GLAKE_DRIVER_ERROR), and may be called again.
  void close();

 private:
  struct Loaded {
    Kernel kernel;
    std::string why;  // why it was not loaded
  };
  Driver& driver_;
  mutable std::mutex mutex_;
  std::map<int, Loaded> loaded_;
  std::atomic<uint64_t> launches_{0};
};

}  // namespace glake::transfer
