// The kernel that copies many blocks in one launch, and the parameters of copy_blocks.cu.
#pragma once

#include <cstdint>

namespace glake::transfer {

struct CopyBlock {
  uint64_t dst = 0, src = 0, bytes = 0;
};

// glake_copy_blocks(const CopyBlock* table, unsigned count)
constexpr const char kCopyBlocks[] = "glake_copy_blocks";
constexpr unsigned kBlockThreads = 256;
// Thread groups of a launch: few enough to leave most of a GPU's multiprocessors to other work.
// Each warp has loads of 2 KiB under way, so all have 512 KiB. That still hides the latency of host
// memory and of a peer's memory.
constexpr unsigned kMostGroups = 32;

}  // namespace glake::transfer
