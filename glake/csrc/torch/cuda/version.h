// All that differs between torch's minors. 2.11 to 2.15 are compiled in the header matrix
// (tools/header_matrix.py). A later minor is assumed to be like the last of these.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#define GLAKE_TORCH_SINCE(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||     \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// This is `override` in the minors that have the virtual function. In older ones nothing calls
// glake's function.
#if GLAKE_TORCH_SINCE(2, 12)
#define GLAKE_OVERRIDE_2_12 override
#else
#define GLAKE_OVERRIDE_2_12
#endif
#if GLAKE_TORCH_SINCE(2, 13)
#define GLAKE_OVERRIDE_2_13 override
#else
#define GLAKE_OVERRIDE_2_13
#endif
#if GLAKE_TORCH_SINCE(2, 14)
#define GLAKE_OVERRIDE_2_14 override
#else
#define GLAKE_OVERRIDE_2_14
#endif

namespace glake::adapter {

namespace caching = c10::CachingDeviceAllocator;
namespace native = c10::cuda::CUDACachingAllocator;

#if GLAKE_TORCH_SINCE(2, 12)
using native::OomRejectionObserver;
inline void set_oom_rejections(caching::DeviceStats* stats, int64_t count) {
  stats->num_oom_rejections = count;
}
#else
using OomRejectionObserver = std::function<void(int64_t, size_t, size_t, size_t)>;
inline void set_oom_rejections(caching::DeviceStats*, int64_t) {}
#endif

#if GLAKE_TORCH_SINCE(2, 13)
constexpr bool kStatsByPool = true;
inline void set_reserved_of_pool(caching::DeviceStats* stats, const c10::MempoolId_t& pool,
                                 const c10::CachingAllocator::StatArray& reserved) {
  stats->reserved_bytes_by_private_pools[pool] = reserved;
}
#else
constexpr bool kStatsByPool = false;
inline void set_reserved_of_pool(caching::DeviceStats*, const c10::MempoolId_t&,
                                 const c10::CachingAllocator::StatArray&) {}
#endif

// The action of metadata attached to a live block; before 2.14 it is not shown in snapshots.
#if GLAKE_TORCH_SINCE(2, 14)
constexpr bool kAnnotates = true;
constexpr auto kAnnotate = caching::TraceEntry::ANNOTATE;
#else
constexpr bool kAnnotates = false;
constexpr auto kAnnotate = caching::TraceEntry::ALLOC;
#endif

}  // namespace glake::adapter
