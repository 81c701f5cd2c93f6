#include "transfer/run/burst_trials.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/transfer_tuning.h"

namespace glake::transfer {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

BurstTrials::BurstTrials(std::vector<Bursts::Copy> copies)
    : copies_(std::move(copies)), queued_(Bursts::queued(copies_)) {
  forget(0);
}

void BurstTrials::forget(uint64_t version) {
  version_ = version;
  late_ = timings_ = 0;
  plain_ = false;
  plain_ns_ = 0;
  for (Trial& one : trials_) {
    one = {};
    one.divisions = std::make_shared<DivisionTrials>(copies_.size());
  }
}

BurstWay BurstTrials::next() const {
  double least = trials_[0].least;
  if (plain_) return fastest();
  if (least == 0) return BurstWay::kUnknown;
  if (plain_ns_ > 0) least = std::min(least, plain_ns_);
  for (const BurstWay way : {BurstWay::kJoint, BurstWay::kApart}) {
    const Trial& one = trials_[static_cast<size_t>(way)];
    const bool tried = one.least != 0 || one.begun == TransferTuning::kWayTries;
    const bool open = !tried && one.differs && one.expected > 0;
    if (open && one.expected < TransferTuning::kWorthTrying * least) return way;
  }
  return fastest();
}

// Of the ways that took some time, and plain copies.
BurstWay BurstTrials::fastest() const {
  auto best = BurstWay::kPlain;
  const auto least_of = [&](BurstWay way) { return trials_[static_cast<size_t>(way)].least; };
  double least = least_of(best);
  if (least == 0) least = plain_ns_ > 0 ? plain_ns_ / TransferTuning::kLeastGain : kNever;
  for (const BurstWay way : {BurstWay::kUnknown, BurstWay::kApart, BurstWay::kJoint}) {
    if (least_of(way) <= 0 || least_of(way) >= least) continue;
    best = way;
    least = least_of(way);
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

bool BurstTrials::wants_time(BurstWay way) {
  Trial& one = trial(way);
  one.begun = std::min(one.begun + 1, TransferTuning::kWayTries);
  return one.least == 0 && timings_++ < TransferTuning::kTimings;
}

bool BurstTrials::times_plain() const {
  const uint64_t calls = TransferTuning::kTimingNs * copies_.size();
  const auto near = [&](const Trial& one) {
    return one.least > 0 && one.least <= TransferTuning::kWorthTrying * plain_ns_;
  };
  const bool doubtful = !plain_ || std::any_of(trials_.begin(), trials_.end(), near);
  return doubtful && static_cast<double>(calls) <= TransferTuning::kTimingPart * plain_ns_;
}

void BurstTrials::give_up(BurstWay way, uint64_t ns) {
  const auto took = static_cast<double>(ns);
  if (trial(way).least > 0) return look_for_late(way, took);
  const bool slow = plain_ns_ > 0 && took > plain_ns_;
  if (way == BurstWay::kPlain || (way == BurstWay::kUnknown && !slow)) return;
  trial(way).least = kNever;
}

void BurstTrials::saw(BurstWay way, std::vector<DivisionTimes> times, uint64_t ns, bool divided) {
  const auto took = static_cast<double>(ns);
  Trial& one = trial(way);
  if (divided) one.divisions->saw(std::move(times), ns);
  const double before = std::exchange(one.least, one.least == 0 ? took : std::min(one.least, took));
  if (before > 0) look_for_late(way, took);
}

// The links may have become slower. Then all ways are tried again.
void BurstTrials::look_for_late(BurstWay way, double took) {
  if (way != fastest()) return;
  late_ = took > TransferTuning::kDrift * trial(way).least ? late_ + 1 : 0;
  if (late_ >= TransferTuning::kLateOnes) forget(version_);
}

}  // namespace glake::transfer
