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
  queued_ = queued_ || (copy.stream.device >= 0 && ends_.count(copy.stream) != 0);
  ends_.emplace(copy.stream, 0);
  if (version_ != version) queues_.clear();  // links or relays were taken away, or are slow
  streams_.push_back(copy.stream);
  if (trials_ == nullptr) return;
  spoilt_ = spoilt_ || (queued_ && !trials_->queued());
  if (number == 0) {
    queued_ = trials_->queued();
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

void LiveBurst::keep_queues(BurstWay way, std::vector<Expected> queues) {
  queues_way_ = way;
  queues_ = std::move(queues);
}

bool LiveBurst::plan_queues(std::vector<Expected>* queues) const {
  for (Expected& one : *queues) {
    const auto same = [&](const Expected& kept) {
      return kept.stream == one.stream && kept.demand == one.demand;
    };
    const auto kept = std::find_if(queues_.begin(), queues_.end(), same);
    if (kept == queues_.end() || one.stream.device < 0) return false;
    one.plan = kept->plan;
  }
  return true;
}

DivisionTrials* LiveBurst::trials_of_next(size_t others, bool one_range) {
  // The division of copies that run one after the other is improved as if they were alone.
  // Its own plain copies may be among those under way or not.
  const size_t own = begun_ - done_;
  const bool only_own = others >= own && others <= own + unseen_;
  spoilt_ = spoilt_ || (queued_ ? begun_ == 0 && others != 0 : !one_range || !only_own);
  if (queued_) return nullptr;
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
  ++unseen_;
  ++done_;
}

void LiveBurst::saw(size_t number, uint64_t began, const DivisionTimes& times) {
  spoilt_ = spoilt_ || times.ns == 0;
  times_.resize(std::max(times_.size(), number + 1));
  times_[number] = times;
  // It began when its stream came to it.
  const StreamKey stream = number < streams_.size() ? streams_[number] : StreamKey{};
  uint64_t& end = ends_[stream];
  end = stream.device >= 0 ? std::max(end, began - began_) : began - began_;
  end += times.ns;
  ns_ = std::max(ns_, end);
  ++done_;
}

void LiveBurst::adopt(std::shared_ptr<BurstTrials> trials) {
  trials_ = std::move(trials);
  foreseen_ = false;
  way_ = BurstWay::kApart;
  if (trials_->version() != version_) trials_->forget(version_);
}

void LiveBurst::settle(uint64_t begun, uint64_t version) {
  if (trials_ == nullptr || spoilt_ || version != version_) return;
  const size_t copies = trials_->copies().size();
  if (begun_ != copies || done_ != copies || begun - before_ != copies) return;
  if (plain_) {
    if (foreseen_) trials_->give_up(way_, ns_);
    return;
  }
  DivisionTrials& divisions = trials_->divisions(way_);
  for (size_t i = 0; i < copies && !queued_; ++i) {
    if (divisions.next(i) == nullptr) divisions.decide(i, decisions_[i]);
  }
  const uint64_t calls = fixed_ * TransferTuning::kTimingNs;  // that plain copies do not make
  trials_->saw(way_, std::move(times_), ns_ - std::min(calls, ns_ / 2), fixed_ == 0 && !queued_);
}

}  // namespace glake::transfer
