#include "transfer/run/burst_trials.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/transfer_tuning.h"

namespace glake::transfer {
void BurstTrials::forget(uint64_t version) {
  version_ = version;
  late_ = 0;
  plain_ = false;
  plain_ns_ = 0;
  for (Trial& one : trials_) one = {0, 0, false, std::make_shared<DivisionTrials>(copies_.size())};
}

BurstWay BurstTrials::next() const {
  double least = trials_[0].least;
  if (plain_) return fastest();
  if (least == 0) return BurstWay::kUnknown;
  if (plain_ns_ > 0) least = std::min(least, plain_ns_);
  for (const BurstWay way : {BurstWay::kJoint, BurstWay::kApart}) {
    const Trial& one = trials_[static_cast<size_t>(way)];
    const bool open = one.least == 0 && one.differs && one.expected > 0;
    if (open && one.expected < TransferTuning::kWorthTrying * least) return way;
  }
  return fastest();
}

// Of the ways that took some time, and plain copies.
BurstWay BurstTrials::fastest() const {
  auto best = BurstWay::kPlain;
  double least = plain_ns_ > 0 ? plain_ns_ / TransferTuning::kLeastGain
                               : std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < trials_.size(); ++i) {
    if (trials_[i].least <= 0 || trials_[i].least >= least) continue;
    best = static_cast<BurstWay>(i);
    least = trials_[i].least;
  }
  return best;
}

void BurstTrials::expect(BurstWay chosen, double joint_ns, double apart_ns, double plain_ns) {
  plain_ = chosen == BurstWay::kPlain;
  trial(BurstWay::kJoint).expected = joint_ns;
  trial(BurstWay::kApart).expected = apart_ns;
  plain_ns_ = plain_ns;
}

void BurstTrials::chose(BurstWay way) {
  for (const BurstWay other : {BurstWay::kJoint, BurstWay::kApart}) {
    if (other != way) trial(other).differs = true;
  }
}

void BurstTrials::give_up(BurstWay way, uint64_t ns) {
  const bool slow = plain_ns_ > 0 && static_cast<double>(ns) > plain_ns_;
  if (way == BurstWay::kUnknown && !slow) return;
  trial(way).least = std::numeric_limits<double>::infinity();
}

void BurstTrials::saw(BurstWay way, std::vector<DivisionTimes> times, uint64_t ns) {
  Trial& one = trial(way);
  const auto took = static_cast<double>(ns);
  const bool late = one.least > 0 && took > TransferTuning::kDrift * one.least;
  one.divisions->saw(std::move(times), ns);
  if (one.least == 0 || took < one.least) one.least = took;
  if (way != fastest()) return;
  late_ = late ? late_ + 1 : 0;
  if (late_ >= TransferTuning::kLateOnes) forget(version_);
}

}  // namespace glake::transfer
