#include "plan/balance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/transfer_tuning.h"
#include "plan/fair_rates.h"

namespace glake::transfer {
namespace {

constexpr Rate kSlowest = 1e-9;  // GB/s

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
    const Outcome common = of(usual());
    Outcome best = common;
    for (int round = 0; round < TransferTuning::kBalances; ++round) {
      Outcome next;
      for (const double scale : {1.0, 1.5, 2.0}) take_better(of(about(best, scale)), &next);
      if (!take_better(std::move(next), &best)) break;
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

  static bool take_better(Outcome tried, Outcome* best) {
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

  Outcome of(std::vector<size_t> at_once) const {
    const std::vector<double> parts;
    topology::FairRates fair(topology_, parts);
    for (size_t i = 0; i < members_.size(); ++i) {
      fair.add(route_of(members_[i].path->path), static_cast<double>(at_once[i]));
    }
    std::vector<char> open(members_.size(), 1);
    Outcome outcome{std::move(at_once), fair.rates(open)};
    // Each path carries what it should in a unit of time. Once it ends, others have its links.
    std::vector<double> left;
    for (const Member& member : members_) left.push_back(member.path->rate);
    double time = 0;
    for (size_t going = members_.size(); going != 0; --going) {
      const std::vector<Rate>& rates = fair.rates(open);
      size_t first = members_.size();
      double passed = 0;
      for (size_t i = 0; i < members_.size(); ++i) {
        const double end = left[i] / std::max(rates[i], kSlowest);
        if (open[i] == 0 || (first != members_.size() && end >= passed)) continue;
        first = i;
        passed = end;
      }
      for (size_t i = 0; i < members_.size(); ++i) {
        left[i] = std::max(left[i] - rates[i] * passed, 0.0);
      }
      open[first] = 0;
      time += passed;
      outcome.last = first;
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
    return take_better(of(std::move(at_once)), best);
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
