#include "transfer/lane.h"

#include <algorithm>

namespace glake::transfer {
namespace {

constexpr double kChunkNs = 75'000;  // what a chunk should take at the planned rate, about
constexpr double kMemory = 0.75;     // weight of what was measured before, per completion

}  // namespace

void HopMeter::replan(Rate planned) {
  rate_ = planned;
  bytes_ = ns_ = 0;
  completed_ = 0;
}

uint64_t HopMeter::finish(uint64_t now, Bytes bytes, uint64_t copy_ns) const {
  const uint64_t begin = under_way_ == 0 ? now + copy_ns : std::max(now, free_at_);
  return begin + static_cast<uint64_t>(static_cast<double>(bytes) / std::max(rate_, 1e-3));
}

uint64_t HopMeter::submit(uint64_t now, Bytes bytes, uint64_t copy_ns) {
  free_at_ = finish(now, bytes, copy_ns);
  if (under_way_++ == 0) mark_ = now + copy_ns;
  return free_at_;
}

void HopMeter::complete(uint64_t now, Bytes bytes) {
  const double elapsed = now > mark_ ? static_cast<double>(now - mark_) : 0;
  bytes_ = kMemory * bytes_ + static_cast<double>(bytes);
  ns_ = kMemory * ns_ + elapsed;
  mark_ = std::max(mark_, now);
  ++completed_;
  if (ns_ > 0) rate_ = bytes_ / ns_;
  if (--under_way_ == 0) free_at_ = now;
}

int Lane::node() const {
  const Place& from = planned.path.hops.front().from;
  const Place& to = planned.path.hops.back().to;
  return from.host() ? from.node : to.host() ? to.node : kSpread;
}

Bytes Lane::least(uint64_t copy_ns) const {
  const double covering = planned.rate * static_cast<double>(copy_ns) * 1.25;
  return std::clamp(static_cast<Bytes>(covering) / kKiB * kKiB, kLeastChunk, kMostChunk / 2);
}

Bytes Lane::most() const {
  Bytes bytes = 2 * kLeastChunk;
  while (bytes < kMostChunk && static_cast<double>(bytes) < planned.rate * kChunkNs) bytes *= 2;
  return bytes;
}

uint64_t Lane::arrival(uint64_t now, Bytes bytes, uint64_t copy_ns) const {
  uint64_t at = now;
  for (const HopMeter& hop : hops) at = hop.finish(at, bytes, copy_ns);
  return at;
}

void Lane::replan(const PlannedPath& path) {
  if (withdrawn) closed = withdrawn = false;
  const bool same = planned.rate > 0.95 * path.rate && planned.rate < 1.05 * path.rate;
  planned.rate = path.rate;
  slow = 0;
  if (same) return;
  for (HopMeter& hop : hops) hop.replan(path.rate);
}

}  // namespace glake::transfer
