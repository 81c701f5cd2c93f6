#include "torch/cuda/block_listeners.h"

#include <c10/core/impl/PyInterpreter.h>

#include <cstdlib>

#include "base/types.h"

namespace glake::adapter {

void BlockListeners::tell(void* ptr, int64_t bytes, int device) const {
  const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(interpreter != nullptr)) {
    auto address = reinterpret_cast<uintptr_t>(ptr);
    if (bytes >= 0) {
      (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, address);
    } else {
      (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, address);
    }
  }
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  auto rounded = static_cast<int64_t>(round_up(static_cast<Bytes>(std::abs(bytes)), kAlignment));
  glake_device_stats stats{};
  library_.get_stats(device, &stats, sizeof stats);
  c10::reportMemoryUsageToProfiler(ptr, bytes < 0 ? -rounded : rounded,
                                   static_cast<size_t>(stats.allocated_bytes[0].current),
                                   static_cast<size_t>(stats.reserved_bytes[0].current),
                                   c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
}

}  // namespace glake::adapter
