#include "plan/block_ways.h"

#include <algorithm>

namespace glake::transfer {

double block_ns(BlockWay way, const BlockLoad& load, Rate rate, const BlockCosts& costs) {
  const double move = static_cast<double>(load.bytes) / std::max(rate, 1e-3);
  const auto pieces = static_cast<double>(load.pieces), small = static_cast<double>(load.small);
  switch (way) {
    case BlockWay::kSingly:
      return pieces * costs.copy_ns + move;
    case BlockWay::kBatch:
      return costs.copy_ns + small * costs.batch_small_ns +
             (pieces - small) * costs.batch_large_ns + move;
    case BlockWay::kKernel:
      return costs.copy_ns + costs.kernel_ns + move / costs.kernel_rate;
  }
  return 0;
}

BlockWay best_way(const BlockLoad& load, Rate rate, const BlockCosts& costs, bool batch,
                  bool kernel) {
  BlockWay best = BlockWay::kSingly;
  double least = block_ns(best, load, rate, costs);
  auto consider = [&](BlockWay way) {
    const double time = block_ns(way, load, rate, costs);
    if (time >= least) return;
    best = way;
    least = time;
  };
  if (batch) consider(BlockWay::kBatch);
  if (kernel) consider(BlockWay::kKernel);
  return best;
}

bool better_staged(Bytes bytes, Rate rate, const BlockCosts& costs) {
  const double move = static_cast<double>(bytes) / std::max(rate, 1e-3);
  return move / costs.kernel_rate - move > costs.copy_ns / 2;
}

}  // namespace glake::transfer
