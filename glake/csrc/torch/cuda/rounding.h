// PyTorch's setting roundup_power2_divisions. It makes fewer sizes, so that memory of one request
// can serve another one of nearly its size.
#pragma once

#include <c10/core/AllocatorConfig.h>

#include <algorithm>
#include <vector>

#include "base/types.h"

namespace glake::adapter {

// Between two powers of two there are `divisions` sizes, evenly spaced. A request takes the next
// larger one. Requests of up to `divisions` times the alignment stay as they are, as in PyTorch's
// allocator.
inline size_t rounded(size_t bytes, size_t divisions) {
  if (divisions <= 1 || bytes <= kAlignment * divisions) return bytes;
  size_t power = size_t{1} << (63 - __builtin_clzll(bytes));
  size_t step = power >> (63 - __builtin_clzll(divisions));
  return (bytes + step - 1) / step * step;
}

// The setting for the request's size. PyTorch reads the settings from PYTORCH_ALLOC_CONF. There is
// one setting for each power of two from 1 MiB on. The first and last also count for all sizes
// beyond them. Every allocation needs a setting, so this reads the list directly: PyTorch's
// function for one entry takes three calls.
inline size_t rounded(size_t bytes) {
  constexpr int kFirst = 20;
  static const std::vector<size_t>& settings =
      c10::CachingAllocator::AcceleratorAllocatorConfig::roundup_power2_divisions();
  const int power = 63 - __builtin_clzll(bytes | 1);  // not defined for 0 bytes, hence the 1
  const auto last = static_cast<int>(settings.size()) - 1;
  return rounded(bytes, settings[static_cast<size_t>(std::clamp(power - kFirst, 0, last))]);
}

}  // namespace glake::adapter
