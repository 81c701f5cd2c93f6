// The kernel that copies many blocks in one launch: what copy_blocks.cu takes.
#pragma once

#include <cstdint>

namespace glake::transfer {

struct CopyBlock {
  uint64_t dst = 0, src = 0, bytes = 0;
};

// glake_copy_blocks(const CopyBlock* table, unsigned count)
constexpr const char kCopyBlocks[] = "glake_copy_blocks";
constexpr unsigned kBlockThreads = 256;
// Few enough to leave most of a GPU's multiprocessors to others, while 2 KiB a warp under way, 512
// KiB in all, still hide the way to another memory.
constexpr unsigned kMostGroups = 32;

}  // namespace glake::transfer
