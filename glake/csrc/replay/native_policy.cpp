// Segments by cudaMalloc, given back by cudaFree.
#include "native_policy.h"

namespace glake::replay {

uint64_t segment_bytes(uint64_t bytes) {
  if (bytes <= kSmallLimit) return kSmallSegment;
  if (bytes < kMidSizeLimit) return kLargeSegment;
  return round_up(bytes, kLargeRounding);
}

bool NativePolicy::should_split(const Pool& pool, uint64_t remaining) const {
  return pool.small ? remaining >= kMinBlock : remaining > kSmallLimit;
}

Block* NativePolicy::grow(Pool& pool, uint32_t stream, uint64_t bytes) {
  const uint64_t segment = segment_bytes(bytes);
  if (!fits(segment)) return nullptr;
  calls_.add(Call::kMalloc, segment);
  physical_ += segment;
  Block* block = new_block(stream, pool.small, next_address_, segment);
  next_address_ += segment;
  return block;
}

void NativePolicy::release_idle(Pool& pool) {
  for (auto it = pool.idle.begin(); it != pool.idle.end();) {
    Block* block = *it;
    if (!block->whole_segment()) {
      ++it;
      continue;
    }
    calls_.add(Call::kFree, block->bytes);
    physical_ -= block->bytes;
    it = pool.idle.erase(it);
    delete_block(block);
  }
}

}  // namespace glake::replay
