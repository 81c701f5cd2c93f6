#include "transfer/run/slow_hop_watch.h"

#include <algorithm>

#include "base/transfer_tuning.h"

namespace glake::transfer {

void SlowHopWatch::start(uint64_t now, const Carried& carried) {
  since_ = now;
  then_ = carried;
}

void SlowHopWatch::stop() {
  since_ = 0;
  slow_looks_ = 0;
}

int SlowHopWatch::look(uint64_t now, const Carried& carried, Rate planned,
                       const std::vector<HopMeter>& hops) {
  if (carried.chunks < then_.chunks + TransferTuning::kWatched ||
      now < since_ + TransferTuning::kWatchNs)
    return -1;
  const Rate rate =
      static_cast<Rate>(carried.bytes - then_.bytes) / static_cast<Rate>(now - since_);
  size_t slowest = 0;
  for (size_t h = 1; h < hops.size(); ++h) {
    if (hops[h].rate() < hops[slowest].rate()) slowest = h;
  }
  const Rate least = TransferTuning::kSlow * planned;
  slow_looks_ = rate < least && hops[slowest].rate() < least ? slow_looks_ + 1 : 0;
  start(now, carried);
  if (slow_looks_ < TransferTuning::kSlowLooks) return -1;
  slow_looks_ = 0;
  return static_cast<int>(slowest);
}

}  // namespace glake::transfer
