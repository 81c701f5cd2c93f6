#include "transfer/run/hop_meter.h"

#include <algorithm>

#include "base/transfer_tuning.h"

namespace glake::transfer {

void HopMeter::replan(Rate planned) {
  rate_ = planned;
  bytes_ = ns_ = 0;
  completed_ = 0;
}

void HopMeter::set_link(Rate link, Rate room, bool alone) {
  link_ = link;
  alone_ = alone;
  if (completed_ == 0) rate_ = std::max(rate_, room);
}

uint64_t HopMeter::finish(uint64_t now, uint64_t at, Bytes claimed, Bytes bytes,
                          uint64_t copy_ns) const {
  auto time = [&](Bytes b) {
    return static_cast<uint64_t>(static_cast<double>(b) / std::max(rate_, 1e-3));
  };
  const Bytes ahead = std::max(ahead_, claimed - std::min(passed_, claimed));
  return std::max(at + (under_way_ == 0 ? copy_ns : 0), now + time(ahead)) + time(bytes);
}

uint64_t HopMeter::submit(uint64_t now, Bytes bytes, uint64_t copy_ns) {
  const uint64_t end = finish(now, now, 0, bytes, copy_ns);
  if (under_way_++ == 0) mark_ = now + copy_ns;
  if (worker().under_way++ < worker().flows) use_->started = now;
  use_->asked = 0;
  ++use_->under_way;
  ahead_ += bytes;
  return end;
}

uint64_t HopMeter::earliest_start(uint64_t copy_ns) const {
  return alone_ || use_->under_way == 0 ? 0 : use_->started + copy_ns;
}

uint64_t HopMeter::moment(uint64_t now, uint64_t copy_ns) {
  const uint64_t earliest = earliest_start(copy_ns);
  const LinkUse* back = use_->back;
  if (earliest > now || back == nullptr || back->under_way == 0) return std::max(earliest, now);
  const bool just_begun = back->started > use_->started && now < back->started + copy_ns / 2;
  if (just_begun || back->asked != 0) return now;
  if (use_->asked == 0) use_->asked = now;
  return std::max(asked_until(copy_ns), now);
}

uint64_t HopMeter::asked_until(uint64_t copy_ns) const {
  return use_->asked == 0 ? 0 : use_->asked + TransferTuning::kTurnStarts * copy_ns;
}

void HopMeter::withdraw(Bytes bytes) {
  --under_way_;
  --use_->under_way;
  --worker().under_way;
  ahead_ -= bytes;
}

void HopMeter::complete(uint64_t now, Bytes bytes, uint64_t copy_ns) {
  double elapsed = now > mark_ ? static_cast<double>(now - mark_) : 0;
  // The copies go one after the other. So `elapsed` has each copy's start in it, which says nothing
  // of the link's speed.
  if (alone_ && completed_ != 0) elapsed = std::max(elapsed - static_cast<double>(copy_ns), 0.0);
  bytes_ = TransferTuning::kMemory * bytes_ + static_cast<double>(bytes);
  ns_ = TransferTuning::kMemory * ns_ + elapsed;
  mark_ = std::max(mark_, now);
  if (worker().under_way > worker().flows) use_->started = now;  // a copy in its stream begins
  ++completed_;
  passed_ += bytes;
  if (ns_ > 0) rate_ = std::min(bytes_ / ns_, link_);
  withdraw(bytes);
}

}  // namespace glake::transfer
