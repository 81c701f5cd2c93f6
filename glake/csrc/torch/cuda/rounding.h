// PyTorch's setting roundup_power2_divisions: fewer sizes, so that what one request leaves another
// of nearly its size can take.
#pragma once

#include <c10/core/AllocatorConfig.h>

#include <algorithm>
#include <vector>

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

// The setting of the request's size; PyTorch reads it from PYTORCH_ALLOC_CONF. It has one for each
// power of two from 1 MiB on, the ends standing for all beyond them. Every allocation asks, so the
// list is read here: to ask for one entry is three calls.
inline size_t rounded(size_t bytes) {
  constexpr int kFirst = 20;
  static const std::vector<size_t>& settings =
      c10::CachingAllocator::AcceleratorAllocatorConfig::roundup_power2_divisions();
  const int power = 63 - __builtin_clzll(bytes | 1);  // of no bytes it is not defined
  const auto last = static_cast<int>(settings.size()) - 1;
  return rounded(bytes, settings[static_cast<size_t>(std::clamp(power - kFirst, 0, last))]);
}

}  // namespace glake::adapter
