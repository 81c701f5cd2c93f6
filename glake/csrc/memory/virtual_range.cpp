#include "memory/virtual_range.h"

namespace glake {

VirtualRange::VirtualRange(Driver& driver, Heap* heap, Granules length)
    : reservation_(driver, heap, length.bytes(), kMiB),
      length_(length),
      chunks_((length.count + kChunk - 1) / kChunk) {}

VirtualPage& VirtualRange::page(uint64_t index) {
  std::unique_ptr<Chunk>& chunk = chunks_[index / kChunk];
  if (chunk == nullptr) chunk = std::make_unique<Chunk>();
  return (*chunk)[index % kChunk];
}

const VirtualPage* VirtualRange::find(uint64_t index) const {
  const std::unique_ptr<Chunk>& chunk = chunks_[index / kChunk];
  return chunk != nullptr ? &(*chunk)[index % kChunk] : nullptr;
}

}  // namespace glake
