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

bool FlowForecast::Copy::done() const {
  return std::all_of(flows.begin(), flows.end(), [](const Flow& flow) { return flow.bytes <= 0; });
}

FlowForecast::Copy* FlowForecast::Queue::first() {
  const auto done = [](const Copy& copy) { return copy.done(); };
  const auto found = std::find_if_not(copies.begin(), copies.end(), done);
  return found != copies.end() ? &*found : nullptr;
}

// The first copy of each queue flows. When it ends, the one behind it begins.
void FlowForecast::advance(uint64_t now) {
  auto left = static_cast<double>(now - std::min(now, std::exchange(now_, now)));
  bool flowing = true;
  for (int event = 0; left > 0 && event < TransferTuning::kMostEvents;) {
    FlowRace race(topology_, parts_);
    std::vector<std::pair<Queue*, Copy*>> first;
    bool waiting = false;
    for (Queue& queue : queues_) {
      Copy* const copy = queue.first();
      if (copy == nullptr) continue;
      first.emplace_back(&queue, copy);
      waiting = waiting || copy != &queue.copies.back();
      for (const Flow& flow : copy->flows) race.add(flow);
    }
    flowing = !first.empty();
    if (!flowing) break;
    do {
      const double ns = std::min(race.next_change(), left);
      race.carry(ns);
      left -= ns;
    } while (++event < TransferTuning::kMostEvents && left > 0 && !waiting);
    size_t i = 0;
    for (auto& [queue, copy] : first) {
      for (size_t k = 0; k < copy->flows.size(); ++k) {
        Flow &flow = copy->flows[k], &sum = queue->sums[copy->routes[k]];
        const double before = flow.bytes;
        race.tell(i++, &flow);
        sum.bytes -= before - flow.bytes;
        sum.delay_ns = flow.delay_ns;
      }
    }
  }
  if (flowing && left > 0) leap(left);
  forget_ended();
}

// Hundreds of copies have more events than advance() computes. If all of them end in the time that
// is left, they are done. If not, the next call goes on from here.
void FlowForecast::leap(double left) {
  FlowRace race(topology_, parts_);
  const size_t count = add_queues(&race, {});
  if (end_of(&race, count) > left || race.carries(count)) {
    now_ -= static_cast<uint64_t>(left);
    return;
  }
  for (Queue& queue : queues_) {
    for (Flow& sum : queue.sums) sum.bytes = 0;
    for (Copy& copy : queue.copies) {
      for (Flow& flow : copy.flows) flow.bytes = 0;
    }
  }
}

void FlowForecast::forget_ended() {
  for (Queue& queue : queues_) {
    const auto untold = [](const Copy& copy) { return copy.key == nullptr && copy.done(); };
    queue.copies.erase(std::remove_if(queue.copies.begin(), queue.copies.end(), untold),
                       queue.copies.end());
  }
  const auto empty = [](const Queue& queue) { return queue.copies.empty(); };
  queues_.erase(std::remove_if(queues_.begin(), queues_.end(), empty), queues_.end());
}

double FlowForecast::share(uint64_t now, const std::vector<Stock>& stocks, std::vector<Flow>* paths,
                           StreamKey own) {
  advance(now);
  FlowRace race(topology_, parts_);
  for (Flow& flow : *paths) {
    flow.bytes = 0;
    race.add(flow);
  }
  add_queues(&race, {own});
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

bool FlowForecast::idle(uint64_t now, StreamKey own) {
  advance(now);
  const auto is_own = [&](const Queue& queue) { return queue.in(own); };
  return std::all_of(queues_.begin(), queues_.end(), is_own);
}

double FlowForecast::end_ns(uint64_t now, const std::vector<Flow>& flows, StreamKey own) {
  advance(now);
  FlowRace race(topology_, parts_);
  for (const Flow& flow : flows) race.add(flow);
  add_queues(&race, {own});
  return end_of(&race, flows.size());
}

double FlowForecast::all_end_ns(uint64_t now, const std::vector<Flow>& flows,
                                const std::vector<StreamKey>& without) {
  advance(now);
  FlowRace race(topology_, parts_);
  for (const Flow& flow : flows) race.add(flow);
  return end_of(&race, flows.size() + add_queues(&race, without));
}

// Adds all queues but those of some streams. Returns how many flows they have.
size_t FlowForecast::add_queues(FlowRace* race, const std::vector<StreamKey>& without) const {
  size_t count = 0;
  for (const Queue& queue : queues_) {
    const auto is_in = [&](StreamKey stream) { return queue.in(stream); };
    if (std::any_of(without.begin(), without.end(), is_in)) continue;
    for (const Flow& flow : queue.sums) race->add(flow);
    count += queue.sums.size();
  }
  return count;
}

// After how many ns the first `awaited` flows are done.
double FlowForecast::end_of(FlowRace* race, size_t awaited) const {
  double passed = 0;
  for (int event = 0; event < TransferTuning::kMostEvents; ++event) {
    const double ns = race->carries(awaited) ? race->next_change() : kNever;
    if (ns == kNever) break;
    race->carry(ns);
    passed += ns;
  }
  return passed;
}

double FlowForecast::busiest(const std::vector<Flow>& flows, StreamKey own) {
  if (topology_ == nullptr) return 0;
  std::vector<double> bytes(topology_->limits().size());
  for (const Flow& flow : flows) add_load(flow.route, flow.bytes, &bytes);
  for (Queue& queue : queues_) {
    const Copy* const first = queue.in(own) ? nullptr : queue.first();
    if (first == nullptr) continue;
    for (const Flow& flow : first->flows) add_load(flow.route, flow.bytes, &bytes);
  }
  double most = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    most = std::max(most, bytes[i] / std::max(limit_of(i), 1e-6));
  }
  return most;
}

void FlowForecast::add(uint64_t now, const void* key, std::vector<Flow> flows, StreamKey stream) {
  advance(now);
  const auto same = [&](const Queue& queue) { return queue.in(stream); };
  auto queue = std::find_if(queues_.begin(), queues_.end(), same);
  if (queue == queues_.end()) queue = queues_.insert(queue, Queue{stream, {}, {}});
  queue->copies.push_back({key, std::move(flows), {}});
  add_sums(&*queue, &queue->copies.back());
}

// Adds each of the copy's flows to a sum of the queue that has the same route.
void FlowForecast::add_sums(Queue* queue, Copy* copy) {
  for (const Flow& flow : copy->flows) {
    size_t found = queue->sums.size();
    for (size_t i = 0; i < queue->sums.size() && found == queue->sums.size(); ++i) {
      const bool taken =
          std::find(copy->routes.begin(), copy->routes.end(), i) != copy->routes.end();
      const Flow& sum = queue->sums[i];
      if (!taken && sum.route == flow.route) found = i;
    }
    if (found == queue->sums.size()) {
      queue->sums.push_back(flow);
    } else {
      Flow& sum = queue->sums[found];
      if (sum.bytes <= 0) sum.delay_ns = flow.delay_ns;
      sum.bytes += flow.bytes;
    }
    copy->routes.push_back(found);
  }
}

void FlowForecast::remove(const void* key) {
  for (Queue& queue : queues_) {
    for (Copy& copy : queue.copies) {
      if (copy.key != key) continue;
      for (size_t k = 0; k < copy.flows.size(); ++k) {
        Flow& sum = queue.sums[copy.routes[k]];
        sum.bytes = std::max(sum.bytes - copy.flows[k].bytes, 0.0);
      }
    }
    const auto same = [&](const Copy& copy) { return copy.key == key; };
    queue.copies.erase(std::remove_if(queue.copies.begin(), queue.copies.end(), same),
                       queue.copies.end());
  }
  forget_ended();
}

}  // namespace glake::transfer
