// How a chunk of many pieces is copied: by one driver copy for each piece, by one batch, or by one
// kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/transfer_tuning.h"
#include "base/types.h"
#include "plan/plan.h"

namespace glake::transfer {

enum class BlockWay { kSingly, kBatch, kKernel };

// What each way costs on its stream, in ns, beyond moving the bytes. The batch's figures are
// published for an H100 (vLLM #42212). Those of the kernel are assumed, because no hardware was
// measured.
struct BlockCosts {
  double copy_ns = TransferTuning::kCopyNs;  // start of a driver copy, of a batch and of a kernel
  Bytes small = 28 * kKiB;                   // a shorter copy counts as small
  double batch_small_ns = 2400, batch_large_ns = 100;  // of each small or large copy in a batch
  double kernel_ns = 2000;                             // to read the table
  double kernel_rate = 0.9;                            // as a part of a copy engine's rate
};

inline BlockCosts block_costs(uint64_t copy_ns) {
  BlockCosts costs;
  costs.copy_ns = static_cast<double>(copy_ns);
  return costs;
}

// Counts the pieces of a chunk or a request, because their cost depends on it.
struct BlockLoad {
  size_t pieces = 0, small = 0;
  Bytes bytes = 0;
  void add(Bytes piece, const BlockCosts& costs) {
    ++pieces;
    small += piece < costs.small;
    bytes += piece;
  }
};

// Estimates of the time on a link of `rate` GB/s that is otherwise idle.
double block_ns(BlockWay way, const BlockLoad& load, Rate rate, const BlockCosts& costs);
// The quickest way. `batch` and `kernel` say whether the driver has these.
BlockWay best_way(const BlockLoad& load, Rate rate, const BlockCosts& costs, bool batch,
                  bool kernel);
// Whether to copy in two steps is quicker than one kernel that reaches over the link. The first
// step copies all bytes in one piece over the link, to or from a buffer beside the pieces. The
// second is a kernel within that GPU's memory. A copy engine is faster over a link, and another
// chunk's copy goes on meanwhile.
bool better_staged(Bytes bytes, Rate rate, const BlockCosts& costs);

}  // namespace glake::transfer
