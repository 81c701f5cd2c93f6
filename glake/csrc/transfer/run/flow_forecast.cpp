#include "transfer/run/flow_forecast.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace glake::transfer {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kLeft = 4096;    // bytes that make no difference any more
constexpr int kMostEvents = 256;  // looked ahead; a machine of 16 GPUs that all copy has fewer

bool flows(const FlowForecast::Flow& flow) { return flow.bytes > 0 && flow.delay_ns <= 0; }

// ns until one of them begins or ends.
double next_change(const std::vector<FlowForecast::Flow*>& all, const std::vector<Rate>& rates) {
  double next = kNever;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i]->bytes <= 0) continue;
    if (all[i]->delay_ns > 0) {
      next = std::min(next, all[i]->delay_ns);
    } else if (rates[i] > 0) {
      next = std::min(next, all[i]->bytes / rates[i]);
    }
  }
  return next;
}

void carry(const std::vector<FlowForecast::Flow*>& all, const std::vector<Rate>& rates, double ns) {
  for (size_t i = 0; i < all.size(); ++i) {
    FlowForecast::Flow& flow = *all[i];
    if (flow.bytes <= 0) continue;
    if (flow.delay_ns > 0) {
      flow.delay_ns = std::max(flow.delay_ns - ns, 0.0);
    } else {
      flow.bytes -= rates[i] * ns;
      if (flow.bytes < kLeft) flow.bytes = 0;
    }
  }
}

}  // namespace

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
    add_load(route_of(planned.path), planned.rate, &sums);
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

// Of those that carry something now; of others, 0.
std::vector<Rate> FlowForecast::rates(const std::vector<Flow*>& all) const {
  std::vector<Rate> rates(all.size(), 0.0);
  std::vector<const topology::Route*> routes;
  std::vector<double> weights;
  std::vector<size_t> which;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!flows(*all[i])) continue;
    rates[i] = all[i]->rate;
    if (topology_ == nullptr || all[i]->route.empty()) continue;
    routes.push_back(&all[i]->route);
    weights.push_back(all[i]->copies);
    which.push_back(i);
  }
  if (routes.empty()) return rates;
  const std::vector<Rate> fair = topology_->rates(routes, weights, parts_);
  for (size_t k = 0; k < which.size(); ++k) rates[which[k]] = fair[k];
  return rates;
}

void FlowForecast::advance(uint64_t now) {
  std::vector<Flow*> all;
  for (Running& one : running_) all.push_back(&one.flow);
  auto left = static_cast<double>(now - std::min(now, std::exchange(now_, now)));
  for (int event = 0; left > 0 && event < kMostEvents; ++event) {
    const std::vector<Rate> fair = rates(all);
    const double ns = std::min(next_change(all, fair), left);
    carry(all, fair, ns);
    left -= ns;
  }
  const auto untold = [](const Running& one) { return one.key == nullptr && one.flow.bytes <= 0; };
  running_.erase(std::remove_if(running_.begin(), running_.end(), untold), running_.end());
}

double FlowForecast::share(uint64_t now, const std::vector<Pool>& pools, std::vector<Flow>* paths) {
  advance(now);
  std::vector<Running> others = running_;
  std::vector<Flow> ours = *paths;
  std::vector<Flow*> all;
  for (Flow& flow : ours) {
    flow.bytes = 0;
    all.push_back(&flow);
  }
  for (Running& one : others) all.push_back(&one.flow);
  std::vector<double> left;
  for (const Pool& pool : pools) {
    left.push_back(pool.bytes);
    for (const size_t path : pool.paths) {
      (*paths)[path].bytes = 0;
      if (pool.bytes > 0) ours[path].bytes = kNever;  // until the pool is empty
    }
  }
  double passed = 0;
  for (int event = 0;; ++event) {
    const std::vector<Rate> fair = rates(all);
    double ns = event < kMostEvents ? next_change(all, fair) : kNever;
    for (size_t p = 0; p < pools.size(); ++p) {
      double rate = 0;
      for (const size_t path : pools[p].paths) rate += fair[path];
      if (left[p] > 0 && rate > 0) ns = std::min(ns, left[p] / rate);
    }
    if (ns == kNever) break;
    bool open = false;
    for (size_t p = 0; p < pools.size(); ++p) {
      for (const size_t path : pools[p].paths) {
        (*paths)[path].bytes += fair[path] * ns;
        left[p] -= fair[path] * ns;
      }
      if (left[p] < kLeft) {
        for (const size_t path : pools[p].paths) ours[path].bytes = 0;
        left[p] = 0;
      }
      open = open || left[p] > 0;
    }
    carry(all, fair, ns);
    passed += ns;
    if (!open) break;
  }
  return passed;
}

bool FlowForecast::idle(uint64_t now) {
  advance(now);
  return running_.empty();
}

double FlowForecast::end_ns(uint64_t now, std::vector<Flow> flows, bool others_too) {
  advance(now);
  std::vector<Running> others = running_;
  std::vector<Flow*> all;
  for (Flow& flow : flows) all.push_back(&flow);
  for (Running& one : others) all.push_back(&one.flow);
  double passed = 0;
  for (int event = 0; event < kMostEvents; ++event) {
    const auto awaited =
        all.begin() + static_cast<std::ptrdiff_t>(others_too ? all.size() : flows.size());
    const bool open =
        std::any_of(all.begin(), awaited, [](const Flow* flow) { return flow->bytes > 0; });
    const std::vector<Rate> fair = rates(all);
    const double ns = open ? next_change(all, fair) : kNever;
    if (ns == kNever) break;
    carry(all, fair, ns);
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
