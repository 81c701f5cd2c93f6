// PyTorch's setting roundup_power2_divisions: fewer sizes, so that what one request leaves another
// of nearly its size can take.
#pragma once

#include <c10/core/AllocatorConfig.h>

#include "base/types.h"

namespace glake::adapter {

// Between two powers of two there are `divisions` sizes, evenly spaced, and a request takes the
// next one; requests up to `divisions` times the alignment are not affected, as in PyTorch's
// allocator.
inline size_t rounded(size_t bytes, size_t divisions) {
  if (divisions <= 1 || bytes <= kAlignment * divisions) return bytes;
  size_t power = size_t{1} << (63 - __builtin_clzll(bytes));
  size_t step = power >> (63 - __builtin_clzll(divisions));
  return (bytes + step - 1) / step * step;
}

// The setting of the request's size; PyTorch reads it from PYTORCH_ALLOC_CONF.
inline size_t rounded(size_t bytes) {
  return rounded(
      bytes, c10::CachingAllocator::AcceleratorAllocatorConfig::roundup_power2_divisions(bytes));
}

}  // namespace glake::adapter
