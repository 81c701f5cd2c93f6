#include "transfer/run/flow_forecast.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/transfer_tuning.h"
#include "transfer/run/flow_race.h"

namespace glake::transfer {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

bool FlowForecast::set_parts(std::vector<double> parts) {
  if (parts == parts_) return false;
  parts_ = std::move(parts);
  return true;
}

topology::Route FlowForecast::route_of(const Path& path) const {
  topology::Route route;
  for (const Hop& hop : path.hops) route.insert(route.end(), hop.route.begin(), hop.route.end());
  return route;
}

Rate FlowForecast::alone(const Hop& hop) const {
  Rate rate = kNever;
  for (const topology::Load& load : hop.route) {
    rate = std::min(rate, limit_of(static_cast<size_t>(load.edge)) / load.share);
  }
  return rate;
}

std::vector<double> FlowForecast::loads(const TransferPlan& plan) const {
  if (topology_ == nullptr) return {};
  std::vector<double> sums(topology_->limits().size());
  for (const PlannedPath& planned : plan.paths) {
    for (const Hop& hop : planned.path.hops) add_load(hop.route, planned.rate, &sums);
  }
  return sums;
}

Rate FlowForecast::pace(const Hop& hop, Rate planned, const std::vector<double>& loads) const {
  Rate rate = hop.route.empty() ? planned : alone(hop);
  for (const topology::Load& load : hop.route) {
    for (const topology::Load& held : topology_->limits_of(load.edge)) {
      const auto limit = static_cast<size_t>(held.edge);
      if (loads[limit] > 0) rate = std::min(rate, planned * limit_of(limit) / loads[limit]);
    }
  }
  return rate;
}

double FlowForecast::limit_of(size_t limit) const {
  return topology_->limits()[limit].limit * (parts_.empty() ? 1 : parts_[limit]);
}

void FlowForecast::add_load(const topology::Route& route, double much,
                            std::vector<double>* sums) const {
  for (const topology::Load& load : route) {
    for (const topology::Load& held : topology_->limits_of(load.edge)) {
      (*sums)[static_cast<size_t>(held.edge)] += much * load.share * held.share;
    }
  }
}

void FlowForecast::advance(uint64_t now) {
  auto left = static_cast<double>(now - std::min(now, std::exchange(now_, now)));
  if (left > 0 && !running_.empty()) {
    FlowRace race(topology_, parts_);
    for (const Running& one : running_) race.add(one.flow);
    for (int event = 0; left > 0 && event < TransferTuning::kMostEvents; ++event) {
      const double ns = std::min(race.next_change(), left);
      race.carry(ns);
      left -= ns;
    }
    for (size_t i = 0; i < running_.size(); ++i) race.tell(i, &running_[i].flow);
  }
  const auto untold = [](const Running& one) { return one.key == nullptr && one.flow.bytes <= 0; };
  running_.erase(std::remove_if(running_.begin(), running_.end(), untold), running_.end());
}

double FlowForecast::share(uint64_t now, const std::vector<Stock>& stocks,
                           std::vector<Flow>* paths) {
  advance(now);
  FlowRace race(topology_, parts_);
  for (Flow& flow : *paths) {
    flow.bytes = 0;
    race.add(flow);
  }
  for (const Running& one : running_) race.add(one.flow);
  std::vector<double> left;
  for (const Stock& stock : stocks) {
    left.push_back(stock.bytes);
    for (const size_t path : stock.paths) {
      if (stock.bytes > 0) race.set_bytes(path, kNever);  // until the stock is empty
    }
  }
  double passed = 0;
  for (int event = 0;; ++event) {
    const std::vector<Rate>& fair = race.rates();
    double ns = event < TransferTuning::kMostEvents ? race.next_change() : kNever;
    for (size_t p = 0; p < stocks.size(); ++p) {
      double rate = 0;
      for (const size_t path : stocks[p].paths) rate += fair[path];
      if (left[p] > 0 && rate > 0) ns = std::min(ns, left[p] / rate);
    }
    if (ns == kNever) break;
    bool open = false;
    race.carry(ns);
    for (size_t p = 0; p < stocks.size(); ++p) {
      for (const size_t path : stocks[p].paths) {
        (*paths)[path].bytes += fair[path] * ns;
        left[p] -= fair[path] * ns;
      }
      if (left[p] < TransferTuning::kLeftBytes) {
        for (const size_t path : stocks[p].paths) race.set_bytes(path, 0);
        left[p] = 0;
      }
      open = open || left[p] > 0;
    }
    passed += ns;
    if (!open) break;
  }
  return passed;
}

bool FlowForecast::idle(uint64_t now) {
  advance(now);
  return running_.empty();
}

double FlowForecast::end_ns(uint64_t now, const std::vector<Flow>& flows, bool others_too) {
  advance(now);
  FlowRace race(topology_, parts_);
  for (const Flow& flow : flows) race.add(flow);
  for (const Running& one : running_) race.add(one.flow);
  const size_t awaited = flows.size() + (others_too ? running_.size() : 0);
  double passed = 0;
  for (int event = 0; event < TransferTuning::kMostEvents; ++event) {
    const double ns = race.carries(awaited) ? race.next_change() : kNever;
    if (ns == kNever) break;
    race.carry(ns);
    passed += ns;
  }
  return passed;
}

double FlowForecast::busiest(const std::vector<Flow>& flows) const {
  if (topology_ == nullptr) return 0;
  std::vector<double> bytes(topology_->limits().size());
  for (const Flow& flow : flows) add_load(flow.route, flow.bytes, &bytes);
  for (const Running& one : running_) add_load(one.flow.route, one.flow.bytes, &bytes);
  double most = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    most = std::max(most, bytes[i] / std::max(limit_of(i), 1e-6));
  }
  return most;
}

void FlowForecast::add(uint64_t now, const void* key, std::vector<Flow> flows) {
  advance(now);
  for (Flow& flow : flows) running_.push_back({key, std::move(flow)});
}

void FlowForecast::remove(const void* key) {
  const auto same = [&](const Running& one) { return one.key == key; };
  running_.erase(std::remove_if(running_.begin(), running_.end(), same), running_.end());
}

}  // namespace glake::transfer
