// Shared by the tests of private pools.
#pragma once

#include "harness.h"

namespace testing {

constexpr MempoolId_t kPool{0, 1}, kOther{0, 2};

inline bool all(cudaStream_t) { return true; }

inline DataPtr from_pool(MempoolId_t pool, size_t bytes) {
  allocator()->beginAllocateToPool(0, pool, &all);
  DataPtr ptr = allocator()->allocate(bytes);
  allocator()->endAllocateToPool(0, pool);
  allocator()->releasePool(0, pool);
  return ptr;
}

inline size_t live_of(MempoolId_t pool) {
  size_t bytes = 0;
  for (const auto& segment : allocator()->snapshot(kNone, false).segments) {
    if (segment.owner_private_pool_id == pool) bytes += segment.allocated_size;
  }
  return bytes;
}

// Bytes of the pool's segments.
inline size_t held_by(MempoolId_t pool) {
  size_t bytes = 0;
  for (const auto& segment : allocator()->snapshot(pool, false).segments) {
    if (segment.owner_private_pool_id == pool) bytes += segment.total_size;
  }
  return bytes;
}

}  // namespace testing
