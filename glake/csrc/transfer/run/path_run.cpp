#include "transfer/run/path_run.h"

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
  return use_->asked == 0 ? 0
                          : use_->asked + static_cast<uint64_t>(TransferTuning::kStarts) * copy_ns;
}

void HopMeter::withdraw(Bytes bytes) {
  --under_way_;
  --use_->under_way;
  --worker().under_way;
  ahead_ -= bytes;
}

void HopMeter::complete(uint64_t now, Bytes bytes, uint64_t copy_ns) {
  double elapsed = now > mark_ ? static_cast<double>(now - mark_) : 0;
  // One after the other, each with its start, which is no fault of the link.
  if (alone_ && completed_ != 0) elapsed = std::max(elapsed - static_cast<double>(copy_ns), 0.0);
  bytes_ = TransferTuning::kMemory * bytes_ + static_cast<double>(bytes);
  ns_ = TransferTuning::kMemory * ns_ + elapsed;
  mark_ = std::max(mark_, now);
  if (worker().under_way > worker().flows) use_->started = now;  // one that waited in its stream
  ++completed_;
  passed_ += bytes;
  if (ns_ > 0) rate_ = std::min(bytes_ / ns_, link_);
  withdraw(bytes);
}

int PathRun::node() const {
  const Place& from = planned.path.hops.front().from;
  const Place& to = planned.path.hops.back().to;
  return from.host() ? from.node : to.host() ? to.node : kSpread;
}

Bytes PathRun::least(uint64_t copy_ns) const {
  // Beside others on its way, the copies of all of them cover a start between them.
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
  const bool same = planned.rate > 0.95 * path.rate && planned.rate < 1.05 * path.rate;
  planned.rate = path.rate;
  if (same) return;
  since = 0;
  slow = 0;
  for (HopMeter& hop : hops) hop.replan(path.rate);
}

void PathRun::start_watch(uint64_t now) {
  since = now;
  chunks_then = chunks;
  landed_then = landed;
}

int PathRun::slow_hop(uint64_t now) {
  if (chunks < chunks_then + TransferTuning::kWatched || now < since + TransferTuning::kWatchNs)
    return -1;
  const Rate carried = static_cast<Rate>(landed - landed_then) / static_cast<Rate>(now - since);
  size_t least = 0;
  for (size_t h = 1; h < hops.size(); ++h) {
    if (hops[h].rate() < hops[least].rate()) least = h;
  }
  const bool behind = carried < TransferTuning::kSlow * planned.rate &&
                      hops[least].rate() < TransferTuning::kSlow * planned.rate;
  slow = behind ? slow + 1 : 0;
  start_watch(now);
  return slow < TransferTuning::kSlowLooks ? -1 : static_cast<int>(least);
}

}  // namespace glake::transfer
