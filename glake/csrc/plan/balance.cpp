#include "plan/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/transfer_tuning.h"
#include "plan/fair_rates.h"

namespace glake::transfer {
namespace {

constexpr double kOneCopy = 0;  // of a path that is one copy, whatever it would need

// How many copies each path of all plans has at once, and what comes of it.
struct Outcome {
  std::vector<size_t> at_once;
  std::vector<Rate> rates;  // of each path
  double least = 0;         // of all plans, the smallest part of its planned rate that one reaches
};

// Whole numbers that are about `scale` times as large, within what a path may have.
std::vector<size_t> copies_at_once(const std::vector<double>& wanted, double scale) {
  constexpr auto kMost = static_cast<double>(TransferTuning::kMostAtOnce);
  std::vector<size_t> at_once;
  for (const double copies : wanted) {
    at_once.push_back(static_cast<size_t>(std::clamp(std::round(scale * copies), 1.0, kMost)));
  }
  return at_once;
}

class Balance {
 public:
  Balance(const topology::Topology& topology, const std::vector<TransferPlan>& plans)
      : topology_(topology), plans_(plans) {}

  Outcome find() const {
    Outcome best = of(usual());
    for (int round = 0; round < TransferTuning::kBalances; ++round) {
      const std::vector<double> wanted = wanted_beside(best);
      Outcome next;
      for (const double scale : {1.0, 1.5, 2.0}) {
        Outcome tried = of(copies_at_once(wanted, scale));
        if (tried.least > TransferTuning::kBalanced * next.least) next = std::move(tried);
      }
      if (next.least <= TransferTuning::kBalanced * best.least) break;
      best = std::move(next);
    }
    return best;
  }

 private:
  static bool plain(const TransferPlan& plan) {
    return plan.paths.size() == 1 && plan.paths[0].path.hops.size() == 1;
  }

  std::vector<size_t> usual() const {
    std::vector<size_t> at_once;
    for (const TransferPlan& plan : plans_) {
      at_once.insert(at_once.end(), plan.paths.size(), plain(plan) ? 1 : TransferTuning::kFlows);
    }
    return at_once;
  }

  Outcome of(std::vector<size_t> at_once) const {
    const std::vector<double> parts;
    topology::FairRates fair(topology_, parts);
    size_t i = 0;
    for (const TransferPlan& plan : plans_) {
      for (const PlannedPath& path : plan.paths) {
        fair.add(route_of(path.path), static_cast<double>(at_once[i++]));
      }
    }
    Outcome outcome{std::move(at_once), fair.rates(std::vector<char>(i, 1)),
                    std::numeric_limits<double>::infinity()};
    i = 0;
    for (const TransferPlan& plan : plans_) {
      Rate sum = 0;
      for (size_t p = 0; p < plan.paths.size(); ++p) sum += outcome.rates[i++];
      if (plan.rate > 0) outcome.least = std::min(outcome.least, sum / plan.rate);
    }
    return outcome;
  }

  // How many copies at once would give each path its planned rate beside those of `outcome`.
  std::vector<double> wanted_beside(const Outcome& outcome) const {
    std::vector<double> wanted;
    for (const TransferPlan& plan : plans_) {
      for (const PlannedPath& path : plan.paths) {
        const size_t i = wanted.size();
        const auto copies = static_cast<double>(outcome.at_once[i]);
        const Rate rate = outcome.rates[i];
        wanted.push_back(plain(plan) ? kOneCopy : rate > 0 ? copies * path.rate / rate : copies);
      }
    }
    return wanted;
  }

  const topology::Topology& topology_;
  const std::vector<TransferPlan>& plans_;
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
