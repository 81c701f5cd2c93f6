#include "plan/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/transfer_tuning.h"
#include "plan/fair_rates.h"

namespace glake::transfer {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr Rate kSlowest = 1e-9;  // GB/s
constexpr double kTogether = 1.01;

// How many copies each path of all plans has at once, and what comes of it.
struct Outcome {
  std::vector<size_t> at_once;
  std::vector<Rate> rates;  // of each path
  // How much of their planned rates all paths reach, which the last one to end decides.
  double reached = 0;
  size_t last = 0;
};

class Balance {
 public:
  Balance(const topology::Topology& topology, const std::vector<TransferPlan>& plans)
      : topology_(topology) {
    for (const TransferPlan& plan : plans) {
      const bool plain = plan.paths.size() == 1 && plan.paths[0].path.hops.size() == 1;
      for (const PlannedPath& path : plan.paths) members_.push_back({&path, plain});
    }
  }

  Outcome find() const {
    const Outcome common = of(usual(), 0);
    Outcome best = common;
    for (int round = 0; round < TransferTuning::kBalances; ++round) {
      const Outcome from = best;
      for (const double scale : {1.0, 1.5, 2.0}) take_better(about(from, scale), &best);
      if (best.reached == from.reached) break;
    }
    while (improve(&best)) {
    }
    return best.reached > TransferTuning::kBalanced * common.reached ? best : common;
  }

 private:
  struct Member {
    const PlannedPath* path;
    bool plain;  // the whole copy is one driver copy, whatever it would need
  };

  bool take_better(std::vector<size_t> at_once, Outcome* best) const {
    Outcome tried = of(std::move(at_once), TransferTuning::kNearer * best->reached);
    if (tried.reached <= TransferTuning::kNearer * best->reached) return false;
    *best = std::move(tried);
    return true;
  }

  std::vector<size_t> usual() const {
    std::vector<size_t> at_once;
    for (const Member& member : members_) {
      at_once.push_back(member.plain ? 1 : TransferTuning::kFlows);
    }
    return at_once;
  }

  // Each path carries what it should in a unit of time. Once it ends, others have its links. Paths
  // that end at nearly the same time do so together. If less than `worth` is sure to be reached, it
  // returns early, with nothing reached.
  Outcome of(std::vector<size_t> at_once, double worth) const {
    const std::vector<double> parts;
    topology::FairRates fair(topology_, parts);
    std::vector<double> left;
    for (size_t i = 0; i < members_.size(); ++i) {
      fair.add(route_of(members_[i].path->path), static_cast<double>(at_once[i]));
      left.push_back(members_[i].path->rate);
    }
    std::vector<char> open(members_.size(), 1);
    Outcome outcome{std::move(at_once), fair.rates(open)};
    double time = 0;
    while (std::find(open.begin(), open.end(), 1) != open.end()) {
      const std::vector<Rate>& rates = fair.rates(open);
      const auto end = [&](size_t i) { return left[i] / std::max(rates[i], kSlowest); };
      double passed = kNever;
      for (size_t i = 0; i < members_.size(); ++i) {
        if (open[i] != 0) passed = std::min(passed, kTogether * end(i));
      }
      time += passed;
      if (time * worth > 1) return outcome;
      double latest = 0;
      for (size_t i = 0; i < members_.size(); ++i) {
        if (open[i] == 0) continue;
        if (end(i) <= passed) {
          open[i] = 0;
          if (end(i) >= latest) outcome.last = i;
          latest = std::max(latest, end(i));
        }
        left[i] -= rates[i] * passed;
      }
    }
    if (time > 0) outcome.reached = 1 / time;
    return outcome;
  }

  // `scale` times as many copies at once as would give each path its planned rate beside those of
  // `outcome`, in whole numbers that a path may have.
  std::vector<size_t> about(const Outcome& outcome, double scale) const {
    constexpr auto kMost = static_cast<double>(TransferTuning::kMostAtOnce);
    std::vector<size_t> at_once;
    for (size_t i = 0; i < members_.size(); ++i) {
      const Rate rate = outcome.rates[i], planned = members_[i].path->rate;
      double copies = members_[i].plain ? 1 : static_cast<double>(outcome.at_once[i]);
      if (rate > 0 && !members_[i].plain) copies *= scale * planned / rate;
      at_once.push_back(static_cast<size_t>(std::clamp(std::round(copies), 1.0, kMost)));
    }
    return at_once;
  }

  // Gives the path that ends last one copy more. Whole numbers leave a path short that one more
  // would serve.
  bool improve(Outcome* best) const {
    if (members_.empty()) return false;
    std::vector<size_t> at_once = best->at_once;
    if (members_[best->last].plain || ++at_once[best->last] > TransferTuning::kMostAtOnce) {
      return false;
    }
    return take_better(std::move(at_once), best);
  }

  const topology::Topology& topology_;
  std::vector<Member> members_;  // the paths of all plans
};

}  // namespace

void balance(const topology::Topology& topology, std::vector<TransferPlan>* plans) {
  const Outcome best = Balance(topology, *plans).find();
  size_t i = 0;
  for (TransferPlan& plan : *plans) {
    for (PlannedPath& path : plan.paths) path.at_once = best.at_once[i++];
  }
}

}  // namespace glake::transfer
