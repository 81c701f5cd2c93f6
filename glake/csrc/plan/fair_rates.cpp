#include "plan/fair_rates.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace glake::topology {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

FairRates::FairRates(const Topology& topology, const std::vector<double>& parts)
    : topology_(topology), parts_(parts), last_(topology.limits().size(), 0) {}

// Several edges of a route may count in one limit. Their weights are added.
void FairRates::add(const Route& route, double copies) {
  const size_t flow = copies_.size();
  copies_.push_back(copies);
  for (const Load& hop : route) {
    for (const Load& held : topology_.limits_of(hop.edge)) {
      const auto limit = static_cast<size_t>(held.edge);
      const double weight = hop.share * held.share;
      size_t& last = last_[limit];
      if (last != 0 && shares_[last - 1].flow == flow) {
        shares_[last - 1].weight += weight;
      } else {
        shares_.push_back({limit, flow, weight});
        last = shares_.size();
      }
    }
  }
  arranged_ = false;
}

void FairRates::arrange() {
  std::vector<size_t> ends(last_.size() + 1, 0);
  for (const Share& share : shares_) ++ends[share.limit + 1];
  for (size_t limit = 1; limit < ends.size(); ++limit) ends[limit] += ends[limit - 1];
  std::vector<Share> sorted(shares_.size());
  rows_.clear();
  for (size_t limit = 0; limit + 1 < ends.size(); ++limit) {
    if (ends[limit] == ends[limit + 1]) continue;
    const double part = parts_.empty() ? 1 : parts_[limit];
    rows_.push_back({topology_.limits()[limit].limit * part, ends[limit], ends[limit + 1]});
  }
  for (const Share& share : shares_) sorted[ends[share.limit]++] = share;
  shares_ = std::move(sorted);
  std::fill(last_.begin(), last_.end(), 0);
  for (const Row& row : rows_) last_[shares_[row.begin].limit] = row.end;
  room_.resize(rows_.size());
  arranged_ = true;
}

// All rates grow together. When a limit is full, its flows stop growing.
const std::vector<double>& FairRates::rates(const std::vector<char>& open) {
  if (!arranged_) arrange();
  rates_.assign(copies_.size(), 0.0);
  growing_ = open;
  left_ = static_cast<size_t>(std::count(open.begin(), open.end(), 1));
  while (left_ > 0) {
    const double step = widest_step();
    if (!std::isfinite(step)) break;  // the other flows have no route
    for (size_t flow = 0; flow < rates_.size(); ++flow) {
      if (growing_[flow] != 0) rates_[flow] += step * copies_[flow];
    }
    freeze(step);
  }
  return rates_;
}

double FairRates::widest_step() {
  double step = kNever;
  for (size_t i = 0; i < rows_.size(); ++i) {
    double room = rows_[i].limit, slope = 0;
    for (size_t at = rows_[i].begin; at < rows_[i].end; ++at) {
      const Share& share = shares_[at];
      room -= share.weight * rates_[share.flow];
      if (growing_[share.flow] != 0) slope += share.weight * copies_[share.flow];
    }
    room_[i] = slope > 0 ? std::max(room, 0.0) / slope : kNever;
    step = std::min(step, room_[i]);
  }
  return step;
}

void FairRates::freeze(double step) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (room_[i] > step * (1 + 1e-12) + 1e-12) continue;
    for (size_t at = rows_[i].begin; at < rows_[i].end; ++at) {
      char& grows = growing_[shares_[at].flow];
      left_ -= static_cast<size_t>(grows);
      grows = 0;
    }
  }
}

}  // namespace glake::topology
