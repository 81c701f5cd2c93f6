#include "transfer/run/live_burst.h"

#include <algorithm>
#include <utility>

#include "base/transfer_tuning.h"

namespace glake::transfer {
// A copy that threads carry, or that is not followed, does not begin here. What was decided for it
// must not be taken for the next copy.
void LiveBurst::plan_next(const Bursts::Copy& copy, size_t number, uint64_t version) {
  if (number == 0) version_ = version;
  spoilt_ = spoilt_ || version_ != version || number != begun_;
  if (version_ != version) queues_.clear();  // links or relays were taken away, or are slow
  // Of two copies in one stream, the second one begins late.
  const bool queued = copy.stream.device >= 0 &&
                      std::find(streams_.begin(), streams_.end(), copy.stream) != streams_.end();
  spoilt_ = spoilt_ || queued;
  streams_.push_back(copy.stream);
  if (trials_ == nullptr) return;
  if (number == 0) {
    if (trials_->version() != version) trials_->forget(version);
    way_ = trials_->next();
    timed_ = trials_->wants_time(way_);
  }
  const std::vector<Bursts::Copy>& copies = trials_->copies();
  spoilt_ = spoilt_ || number >= copies.size() || !(copy == copies[number]);
}

void LiveBurst::chose(BurstWay way, double joint_ns, double apart_ns, double plain_ns) {
  if (trials_ == nullptr) return;
  if (begun_ == 0) trials_->expect(way, joint_ns, apart_ns, plain_ns);
  trials_->chose(way);
}

void LiveBurst::keep_queues(BurstWay way, std::vector<Expected> queues,
                            std::vector<Demand> demands) {
  way_ = way;
  queues_ = std::move(queues);
  demands_ = std::move(demands);
  spoilt_ = true;
}

bool LiveBurst::plan_queues(std::vector<Expected>* queues,
                            const std::vector<Demand>& demands) const {
  for (size_t i = 0; i < queues->size(); ++i) {
    Expected& one = (*queues)[i];
    size_t kept = 0;
    while (kept < queues_.size() &&
           !(queues_[kept].stream == one.stream && demands_[kept] == demands[i])) {
      ++kept;
    }
    if (kept == queues_.size() || one.stream.device < 0) return false;
    one.plan = queues_[kept].plan;
  }
  return true;
}

DivisionTrials* LiveBurst::trials_of_next(size_t others, bool one_range) {
  spoilt_ = spoilt_ || !one_range || others != begun_;
  return trials_ != nullptr && !spoilt_ ? &trials_->divisions(way_) : nullptr;
}

size_t LiveBurst::begin(DecisionPtr decision, uint64_t before, uint64_t now) {
  if (begun_ == 0) {
    before_ = before;
    began_ = now;
  }
  fixed_ += decision->plan != nullptr && decision->division == nullptr;
  decisions_.push_back(std::move(decision));
  return begun_++;
}

void LiveBurst::begin_plain(uint64_t before, uint64_t now) {
  begin(std::make_shared<const Decision>(), before, now);
  plain_ = true;
  ++done_;
}

void LiveBurst::saw(size_t number, uint64_t began, const DivisionTimes& times) {
  spoilt_ = spoilt_ || times.ns == 0;
  times_.resize(std::max(times_.size(), number + 1));
  times_[number] = times;
  ns_ = std::max(ns_, began - began_ + times.ns);
  ++done_;
}

void LiveBurst::adopt(std::shared_ptr<BurstTrials> trials) {
  trials_ = std::move(trials);
  way_ = BurstWay::kApart;
  if (trials_->version() != version_) trials_->forget(version_);
}

void LiveBurst::settle(uint64_t begun, uint64_t version) {
  if (trials_ == nullptr || spoilt_ || version != version_) return;
  const size_t copies = trials_->copies().size();
  if (begun_ != copies || done_ != copies || begun - before_ != copies) return;
  if (plain_) return trials_->give_up(way_, ns_);
  DivisionTrials& divisions = trials_->divisions(way_);
  for (size_t i = 0; i < copies; ++i) {
    if (divisions.next(i) == nullptr) divisions.decide(i, decisions_[i]);
  }
  const uint64_t calls = fixed_ * TransferTuning::kTimingNs;  // that plain copies do not make
  trials_->saw(way_, std::move(times_), ns_ - std::min(calls, ns_ / 2), fixed_ == 0);
}

}  // namespace glake::transfer
