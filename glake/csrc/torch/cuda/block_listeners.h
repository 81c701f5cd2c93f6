// Tells torch's profiler and its sanitizer of each block of torch's.
#pragma once

#include <c10/core/impl/GPUTrace.h>

#include <cstdint>

#include "torch/cuda/version.h"
#include "torch/library.h"

namespace glake::adapter {

class BlockListeners {
 public:
  explicit BlockListeners(const CudaLibrary& library) : library_(library) {}

  // Whether one of the two listens on this thread now.
  static bool any() {
    return C10_UNLIKELY(c10::impl::GPUTrace::get_trace() != nullptr ||
                        c10::memoryProfilingEnabled());
  }
  // `bytes` is negative for a free. A free is told before it is made, because the address may be
  // another block's afterwards.
  void tell(void* ptr, int64_t bytes, int device) const;

 private:
  const CudaLibrary& library_;
};

}  // namespace glake::adapter
