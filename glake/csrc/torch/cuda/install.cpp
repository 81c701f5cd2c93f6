// The functions that Python calls, through ctypes, to install the adapter.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "torch/cuda/allocator.h"
#include "torch/cuda/host_allocator.h"

#define GLAKE_ADAPTER extern "C" __attribute__((visibility("default")))

using glake::adapter::CudaAllocator;
using glake::adapter::HostAllocator;

// Makes glake torch's CUDA allocator, for good. With `host` it also serves pinned memory. With
// `legacy_pools` private pools have cudaMalloc's memory. `fraction` of each device's memory is the
// limit; negative: the option GLAKE_LIMIT. It must be called before CUDA is initialised, and before
// other threads allocate. Returns 0, or -1 and a sentence in `text`.
GLAKE_ADAPTER int glake_adapter_install(const char* library, int host, int legacy_pools,
                                        double fraction, char* text, size_t capacity) try {
  namespace native = c10::cuda::CUDACachingAllocator;
  native::CUDAAllocator* before = native::get();
  CudaAllocator& ours = CudaAllocator::instance();
  if (before == &ours) return 0;
  if (before != nullptr && before->initialized()) {
    std::snprintf(text, capacity,
                  "CUDA is already initialised, and PyTorch cannot change its allocator then: "
                  "enable glake before the first CUDA call, or start with GLAKE_ALLOCATOR=1");
    return -1;
  }
  std::string missing = ours.library().open(library);
  if (!missing.empty()) {
    std::snprintf(text, capacity, "%s", missing.c_str());
    return -1;
  }
  if (legacy_pools != 0) ours.set_legacy_pools();
  if (fraction >= 0) ours.start_with_fraction(fraction);
  // libglake was loaded before this, so its destructors run after this handler.
  std::atexit([] { CudaAllocator::instance().process_exits(); });
  constexpr uint8_t kPriority = 1;  // above torch's own (0)
  native::allocator.store(&ours);
  c10::SetAllocator(c10::kCUDA, &ours, kPriority);
  if (host != 0) at::setHostAllocator(c10::kCUDA, &HostAllocator::instance(), kPriority);
  return 0;
} catch (const std::exception& error) {
  std::snprintf(text, capacity, "%s", error.what());
  return -1;
}

// The number of frees that glake refused, because it does not know the memory or the process
// forked.
GLAKE_ADAPTER uint64_t glake_adapter_refused_frees() {
  return CudaAllocator::instance().refused_frees();
}

GLAKE_ADAPTER const char* glake_adapter_torch() { return TORCH_VERSION; }
