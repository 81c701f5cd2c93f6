#include "transfer/run/path_run.h"

#include <algorithm>
#include <cmath>

#include "base/transfer_tuning.h"

namespace glake::transfer {

int PathRun::node() const {
  const Place& from = planned.path.hops.front().from;
  const Place& to = planned.path.hops.back().to;
  return from.host() ? from.node : to.host() ? to.node : kSpread;
}

Bytes PathRun::least(uint64_t copy_ns) const {
  // While a copy of any run over the hop starts, the copies of the other runs fill the link.
  Rate together = planned.rate;
  for (const HopMeter& hop : hops) together = std::max(together, hop.use()->planned);
  const double covering = together * static_cast<double>(copy_ns) * TransferTuning::kCovering;
  return std::clamp(static_cast<Bytes>(covering) / kKiB * kKiB, TransferTuning::kLeastChunk,
                    most(copy_ns));
}

Bytes PathRun::most(uint64_t copy_ns) const {
  const Bytes limit = relayed() ? TransferTuning::kMostChunk : TransferTuning::kMostDirect;
  Bytes bytes = 2 * TransferTuning::kLeastChunk;
  const double wanted = planned.rate * static_cast<double>(copy_ns) * TransferTuning::kStarts;
  while (bytes < limit && static_cast<double>(bytes) < wanted) bytes *= 2;
  return bytes;
}

uint64_t PathRun::arrival(uint64_t now, Bytes bytes, uint64_t copy_ns) const {
  uint64_t at = now;
  for (const HopMeter& hop : hops) at = hop.finish(now, at, claimed, bytes, copy_ns);
  return at;
}

bool PathRun::alone(size_t hop, Bytes bytes, uint64_t copy_ns) const {
  const double covered = 3 * static_cast<double>(copy_ns) * planned.rate;
  return hops[hop].alone() && static_cast<double>(bytes) > covered;
}

Rate PathRun::pace() const {
  Rate least = hops.front().rate();
  for (const HopMeter& hop : hops) least = std::min(least, hop.rate());
  return least;
}

void PathRun::replan(const PlannedPath& path) {
  if (withdrawn) closed = withdrawn = false;
  const double change = std::abs(planned.rate - path.rate);
  const bool same = change < TransferTuning::kPaceKept * path.rate;
  planned.rate = path.rate;
  if (same) return;
  watch.stop();
  for (HopMeter& hop : hops) hop.replan(path.rate);
}

}  // namespace glake::transfer
