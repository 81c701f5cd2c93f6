#include "transfer/run/under_way.h"

#include <algorithm>
#include <utility>

#include "base/transfer_tuning.h"

namespace glake::transfer {

void UnderWay::add(Enqueued copy) {
  forecast_.add(copy.began, copy.key, copy.decision->flows, copy.stream);
  if (copy.live != nullptr) copy.number = copy.live->begin(copy.decision, begun_, copy.began);
  ++begun_;
  come_beside(copy.stream);
  enqueued_.push_back(std::move(copy));
}

std::optional<UnderWay::Enqueued> UnderWay::take(const void* key) {
  forecast_.remove(key);
  const auto same = [&](const Enqueued& one) { return one.key == key; };
  const auto found = std::find_if(enqueued_.begin(), enqueued_.end(), same);
  if (found == enqueued_.end()) return {};
  Enqueued taken = std::move(*found);
  enqueued_.erase(found);
  return taken;
}

void UnderWay::add_plain(const Demand& demand, StreamKey stream, Flow flow, uint64_t now,
                         uint64_t until, LiveBurst* live) {
  if (plain_.size() < TransferTuning::kPlainRemembered) plain_.push_back({demand, stream, until});
  come_beside(stream);
  if (live != nullptr) live->begin_plain(begun_, now);
  ++begun_;
  forecast_.add(now, nullptr, {std::move(flow)}, stream);
}

// A copy begins in this stream.
void UnderWay::come_beside(StreamKey stream) {
  for (Enqueued& one : enqueued_) one.alone = one.alone && one.stream == stream;
}

void UnderWay::add_demands(uint64_t now, const std::vector<StreamKey>& without,
                           std::vector<Demand>* demands) {
  const auto ended = [&](const Plain& one) { return one.until <= now; };
  plain_.erase(std::remove_if(plain_.begin(), plain_.end(), ended), plain_.end());
  if (forecast_.idle(now)) plain_.clear();  // it knows better how copies share links
  std::vector<std::pair<StreamKey, Demand>> seen;
  const auto add = [&](StreamKey stream, const Demand& demand) {
    if (stream.device >= 0) {
      const std::pair<StreamKey, Demand> one{stream, demand};
      if (std::find(without.begin(), without.end(), stream) != without.end()) return;
      if (std::find(seen.begin(), seen.end(), one) != seen.end()) return;
      seen.push_back(one);
    }
    demands->push_back(demand);
  };
  for (const Plain& one : plain_) add(one.stream, one.demand);
  for (const Enqueued& one : enqueued_) add(one.stream, one.demand);
}

std::vector<Demand> UnderWay::enqueued() const {
  std::vector<Demand> all;
  for (const Enqueued& one : enqueued_) all.push_back(one.demand);
  return all;
}

uint32_t UnderWay::gpus(StreamKey without) const {
  uint32_t busy = 0;
  for (const Enqueued& one : enqueued_) {
    if (!(one.stream == without)) busy |= one.decision->gpus;
  }
  return busy;
}

bool UnderWay::in(StreamKey stream) const {
  return std::any_of(enqueued_.begin(), enqueued_.end(),
                     [&](const Enqueued& one) { return one.stream == stream; });
}

bool UnderWay::tries(StreamKey stream) const {
  return std::any_of(enqueued_.begin(), enqueued_.end(), [&](const Enqueued& one) {
    return one.stream == stream && one.decision->trial;
  });
}

}  // namespace glake::transfer
