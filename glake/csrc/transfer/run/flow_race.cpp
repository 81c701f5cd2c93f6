#include "transfer/run/flow_race.h"

#include <algorithm>
#include <limits>

namespace glake::transfer {

FlowRace::FlowRace(const topology::Topology* topology, const std::vector<double>& parts) {
  if (topology != nullptr) fair_.emplace(*topology, parts);
}

void FlowRace::add(const Flow& flow) {
  if (fair_) fair_->add(flow.route, flow.copies);
  delay_.push_back(flow.delay_ns);
  bytes_.push_back(flow.bytes);
  own_.push_back(flow.rate);
  linked_.push_back(fair_ && !flow.route.empty());
  going_.push_back(0);
  open_.push_back(0);
  known_ = false;
}

void FlowRace::tell(size_t flow, Flow* to) const {
  to->delay_ns = delay_[flow];
  to->bytes = bytes_[flow];
}

bool FlowRace::carries(size_t count) const {
  const auto end = bytes_.begin() + static_cast<std::ptrdiff_t>(count);
  return std::any_of(bytes_.begin(), end, [](double bytes) { return bytes > 0; });
}

// The rates change when a flow begins or ends.
const std::vector<Rate>& FlowRace::rates() {
  bool any = false;
  for (size_t i = 0; i < bytes_.size(); ++i) {
    const bool goes = bytes_[i] > 0 && delay_[i] <= 0;
    known_ = known_ && goes == (going_[i] != 0);
    going_[i] = goes;
    open_[i] = goes && linked_[i] != 0;
    any = any || open_[i] != 0;
  }
  if (known_) return rates_;
  if (any) {
    rates_ = fair_->rates(open_);
  } else {
    rates_.assign(bytes_.size(), 0);
  }
  for (size_t i = 0; i < bytes_.size(); ++i) {
    if (going_[i] != 0 && linked_[i] == 0) rates_[i] = own_[i];
  }
  known_ = true;
  return rates_;
}

double FlowRace::next_change() {
  const std::vector<Rate>& fair = rates();
  double next = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < bytes_.size(); ++i) {
    if (bytes_[i] <= 0) continue;
    if (delay_[i] > 0) {
      next = std::min(next, delay_[i]);
    } else if (fair[i] > 0) {
      next = std::min(next, bytes_[i] / fair[i]);
    }
  }
  return next;
}

void FlowRace::carry(double ns) {
  const std::vector<Rate>& fair = rates();
  for (size_t i = 0; i < bytes_.size(); ++i) {
    if (bytes_[i] <= 0) continue;
    if (delay_[i] > 0) {
      delay_[i] = std::max(delay_[i] - ns, 0.0);
    } else {
      bytes_[i] -= fair[i] * ns;
      if (bytes_[i] < TransferTuning::kLeftBytes) bytes_[i] = 0;
    }
  }
}

}  // namespace glake::transfer
