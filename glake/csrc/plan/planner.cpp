#include "plan/planner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/numbers.h"
#include "base/transfer_tuning.h"
#include "plan/balance.h"
#include "plan/engines.h"
#include "plan/workers.h"

namespace glake::transfer {
namespace {

using topology::Load;
using topology::Route;
using topology::Topology;

std::string shown(double rate) { return fixed_text(rate, 1); }

std::string key_of(const std::vector<Demand>& demands) {
  std::string key;
  key.reserve(demands.size() * (5 * sizeof(int) + sizeof(double)));
  for (const Demand& demand : demands) {
    const int places[] = {demand.src.gpu, demand.src.node, demand.dst.gpu, demand.dst.node};
    key.append(reinterpret_cast<const char*>(places), sizeof places);
    key.append(reinterpret_cast<const char*>(&demand.weight), sizeof demand.weight);
    key.append(reinterpret_cast<const char*>(&demand.relays), sizeof demand.relays);
    key.push_back(static_cast<char>((demand.few_relays ? 1 : 0) + (demand.may_read ? 2 : 0)));
  }
  return key;
}

std::string limit_name(const Topology& topology, int limit) {
  std::string name;
  for (const Load& term : topology.limits()[static_cast<size_t>(limit)].terms) {
    name += (name.empty() ? "" : " with ") + topology.shown(term.edge);
  }
  return name;
}

bool loads(const Candidate& candidate, int limit) {
  return std::any_of(candidate.loads.begin(), candidate.loads.end(),
                     [&](const Load& load) { return load.edge == limit; });
}

}  // namespace

Planner::Planner(const Topology& topology, PlannerOptions options)
    : options_(options),
      nominal_(topology),
      topology_(topology),
      scale_(topology.limits().size(), 1.0),
      may_relay_(static_cast<size_t>(topology.gpus()), true) {}

void Planner::set_scale(int edge, double factor) {
  if (edge < 0 || edge >= nominal_.edges() || !(factor >= 0) || std::isinf(factor)) {
    throw PlanError("edge " + std::to_string(edge) + " at " + exact_text(factor) +
                    " times its rate: edges are 0 to " + std::to_string(nominal_.edges() - 1) +
                    ", factors from 0");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  scale_[static_cast<size_t>(edge)] = factor;
  refresh();
}

void Planner::lend(std::vector<double> factors) {
  const bool valid = std::all_of(factors.begin(), factors.end(), [](double part) {
    return part >= 0 && part <= 1;  // NaN is not
  });
  if (!valid || (!factors.empty() && factors.size() != limits())) {
    throw PlanError(std::to_string(factors.size()) + " parts of limits: there are " +
                    std::to_string(limits()) + ", and parts are from 0 to 1");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  lent_ = std::move(factors);
  refresh();
}

void Planner::refresh() {
  for (size_t limit = 0; limit < scale_.size(); ++limit) {
    const double lent = lent_.empty() ? 1 : lent_[limit];
    topology_.set_limit(limit, nominal_.limits()[limit].limit * scale_[limit] * lent);
  }
  known_.clear();
  ++version_;
}

void Planner::set_relay(int gpu, bool usable) {
  if (gpu < 0) throw PlanError(device_text(gpu) + ": a relay is a GPU of the machine");
  check(Place{gpu});
  std::lock_guard<std::mutex> lock(mutex_);
  may_relay_[static_cast<size_t>(gpu)] = usable;
  known_.clear();
  ++version_;
}

std::shared_ptr<const Planner::Plans> Planner::find(const std::vector<Demand>& demands) const {
  const std::string key = key_of(demands);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  for (const Demand& demand : demands) {
    check(demand.src);
    check(demand.dst);
    if (!(demand.weight > 0))
      throw PlanError("a demand of weight " + exact_text(demand.weight) + ": weights are above 0");
  }
  auto made = std::make_shared<const Plans>(make(demands));
  if (known_.size() >= TransferTuning::kPlansKnown) known_.clear();
  known_.emplace(key, made);
  return made;
}

void Planner::check(const Place& place) const {
  if (place.gpu >= nominal_.gpus()) {
    throw PlanError(device_text(place.gpu) + ": the machine has " +
                    counted(static_cast<uint64_t>(nominal_.gpus()), "GPU"));
  }
  if (place.host() && (place.node >= topology_.sockets() || place.node < kStriped)) {
    throw PlanError("host memory of socket " + std::to_string(place.node) + ": the machine has " +
                    std::to_string(topology_.sockets()));
  }
}

Planner::Ends Planner::ends_of(const Demand& demand) {
  const auto node = [](const Place& place) { return place.host() ? place.node : 0; };
  return {std::max(demand.src.gpu, -1), node(demand.src), std::max(demand.dst.gpu, -1),
          node(demand.dst)};
}

const Candidates& Planner::candidates(const Demand& demand) const {
  const Ends ends = ends_of(demand);
  const auto found = candidates_.find(ends);
  if (found != candidates_.end()) return found->second;
  Candidates made = find_candidates(nominal_, demand.src, demand.dst, options_.relays);
  return candidates_.emplace(ends, std::move(made)).first->second;
}

std::vector<Rate> Planner::plain_rates(const std::vector<Demand>& demands) const {
  std::vector<const Route*> flows;
  for (const Demand& demand : demands) {
    const Ends ends = ends_of(demand);
    auto found = plain_.find(ends);
    if (found == plain_.end()) {
      found = plain_.emplace(ends, plain_route(nominal_, demand.src, demand.dst)).first;
    }
    flows.push_back(&found->second);
  }
  std::vector<Rate> rates = topology_.rates(flows);
  for (size_t d = 0; d < flows.size(); ++d) {
    if (flows[d]->empty()) rates[d] = 0;
  }
  return rates;
}

std::string Planner::closed(const Candidate& candidate, const Demand& demand) const {
  for (const Hop& hop : candidate.path.hops) {
    for (const Load& load : hop.route) {
      if (topology_.rate(load.edge) > 0) continue;
      const bool dead = scale_[static_cast<size_t>(load.edge)] <= 0;
      return topology_.shown(load.edge) + (dead ? " is dead" : " is lent to other processes");
    }
  }
  for (const int gpu : candidate.relays) {
    const bool granted = (demand.relays >> gpu & 1) != 0;
    if (!granted || !may_relay_[static_cast<size_t>(gpu)])
      return device_text(gpu) + " may not relay";
  }
  return "";
}

std::vector<Party> Planner::parties(const std::vector<Demand>& demands,
                                    const std::vector<bool>& direct_only, size_t relays) const {
  std::vector<Party> parties(demands.size());
  for (size_t d = 0; d < demands.size(); ++d) {
    const Demand& demand = demands[d];
    const Place& host = demand.src.host() ? demand.src : demand.dst;
    const bool striped =
        host.host() && host.node == kStriped && demand.src.host() != demand.dst.host();
    parties[d].weight = demand.weight;
    parties[d].parts = striped ? topology_.sockets() : 1;
    const size_t most = demand.few_relays ? TransferTuning::kFewRelays : relays;
    for (const Candidate& candidate : candidates(demand).paths) {
      if ((direct_only[d] && !candidate.direct) || candidate.relays.size() > most) continue;
      if (closed(candidate, demand).empty()) parties[d].paths.push_back(&candidate);
    }
  }
  return parties;
}

double Planner::least_gain(const Demand& demand) const {
  return demand.src.host() || demand.dst.host() ? options_.host_gain : options_.relay_gain;
}

// Demands that begin together are done when the slowest is done. Returns the rate that the slowest
// has for each unit of weight, or 0 if that gains too little over plain copies.
Rate Planner::pace_of(const std::vector<Demand>& demands, const std::vector<Party>& parties,
                      const std::vector<Rate>& plain) const {
  Rate pace = std::numeric_limits<Rate>::infinity(), least = pace;
  for (size_t d = 0; d < parties.size(); ++d) {
    pace = std::min(pace, parties[d].total / demands[d].weight);
    least = std::min(least, least_gain(demands[d]) * plain[d] / demands[d].weight);
  }
  return pace >= least ? pace : 0;
}

// A demand that gains too little by relays has the direct path only. `too_little` says of each why.
std::vector<Party> Planner::shares(const std::vector<Demand>& demands,
                                   const std::vector<Rate>& plain, size_t relays,
                                   std::vector<std::string>* too_little) const {
  std::vector<bool> direct_only(demands.size(), false);
  too_little->assign(demands.size(), "");
  std::vector<Party> shared;
  for (bool again = true; again;) {
    again = false;
    shared = parties(demands, direct_only, relays);
    fill(topology_, &shared);
    const Rate pace = pace_of(demands, shared, plain);
    for (size_t d = 0; d < demands.size(); ++d) {
      const double gain = least_gain(demands[d]);
      if (direct_only[d] || shared[d].total >= gain * plain[d]) continue;
      if (plain[d] < pace * demands[d].weight) continue;  // alone it would be the slowest
      direct_only[d] = true;
      // If the other paths carried nothing, nothing changes.
      for (size_t p = 0; p < shared[d].paths.size(); ++p) {
        if (!shared[d].paths[p]->direct && shared[d].rates[p] > 0) again = true;
      }
      (*too_little)[d] = "all paths together carry " + shown(shared[d].total) +
                         " GB/s, a plain copy " + shown(plain[d]) + ": gain under " +
                         std::to_string(std::lround((gain - 1) * 100)) + " %";
    }
  }
  return shared;
}

// Whether any of these demands has a path over more than a few relays.
bool Planner::has_long_paths(const std::vector<Demand>& demands) const {
  return std::any_of(demands.begin(), demands.end(), [&](const Demand& demand) {
    if (demand.few_relays) return false;
    const std::vector<Candidate>& paths = candidates(demand).paths;
    return std::any_of(paths.begin(), paths.end(), [](const Candidate& path) {
      return path.relays.size() > TransferTuning::kFewRelays;
    });
  });
}

Planner::Plans Planner::make(const std::vector<Demand>& demands) const {
  const std::vector<Rate> plain = plain_rates(demands);
  std::vector<std::string> too_little;
  std::vector<Party> shared = shares(demands, plain, TransferTuning::kFewRelays, &too_little);
  if (has_long_paths(demands)) {
    std::vector<std::string> reasons;
    std::vector<Party> longer = shares(demands, plain, SIZE_MAX, &reasons);
    bool gains = false;
    Rate before = std::numeric_limits<Rate>::infinity(), after = before;  // of the slowest
    for (size_t d = 0; d < demands.size(); ++d) {
      gains = gains || longer[d].total > TransferTuning::kLongGain * shared[d].total;
      before = std::min(before, shared[d].total / demands[d].weight);
      after = std::min(after, longer[d].total / demands[d].weight);
    }
    if (gains && after >= (1 - TransferTuning::kOtherLoss) * before) {
      shared = std::move(longer);
      too_little = std::move(reasons);
    }
  }
  if (keep_fattest(static_cast<size_t>(options_.paths), &shared)) fill(topology_, &shared);
  prune(topology_, &shared);
  even_out(topology_, &shared);
  Plans plans(demands.size());
  for (size_t d = 0; d < demands.size(); ++d) {
    TransferPlan& plan = plans[d];
    plan.plain = plain[d];
    plan.rate = shared[d].total;
    for (size_t p = 0; p < shared[d].paths.size(); ++p) {
      plan.paths.push_back({shared[d].paths[p]->path, shared[d].rates[p]});
    }
    plan.refusals = refusals(shared, d, demands[d], too_little[d]);
  }
  choose_engines(topology_, demands, &plans);
  balance(topology_, &plans);
  for (TransferPlan& plan : plans) spread_workers(&plan);
  return plans;
}

std::vector<Refusal> Planner::refusals(const std::vector<Party>& parties, size_t number,
                                       const Demand& demand, const std::string& too_little) const {
  const Candidates& known = candidates(demand);
  std::vector<Refusal> refused = known.refusals;
  const std::vector<const Candidate*>& used = parties[number].paths;
  for (const Candidate& candidate : known.paths) {
    if (refused.size() >= TransferTuning::kMostRefusals) return refused;
    if (std::count(used.begin(), used.end(), &candidate) != 0) continue;
    std::string reason = closed(candidate, demand);
    if (reason.empty())
      reason = candidate.direct || too_little.empty() ? why_not(candidate, parties) : too_little;
    refused.push_back({candidate.path.name, std::move(reason)});
  }
  return refused;
}

// Names the limit that is full without the candidate, and its largest user.
std::string Planner::why_not(const Candidate& candidate, const std::vector<Party>& parties) const {
  for (const Load& load : candidate.loads) {
    double sum = 0, most = 0;
    const Candidate* user = nullptr;
    for (const Party& party : parties) {
      for (size_t p = 0; p < party.paths.size(); ++p) {
        if (!loads(*party.paths[p], load.edge)) continue;
        for (const Load& other : party.paths[p]->loads) {
          if (other.edge != load.edge) continue;
          sum += party.rates[p] * other.share;
          if (party.rates[p] * other.share > most) {
            most = party.rates[p] * other.share;
            user = party.paths[p];
          }
        }
      }
    }
    if (user == nullptr || sum < TransferTuning::kPlanFull *
                                     topology_.limits()[static_cast<size_t>(load.edge)].limit) {
      continue;
    }
    return limit_name(topology_, load.edge) + " is full (" + user->path.name + ")";
  }
  return "would carry too little";
}

}  // namespace glake::transfer
