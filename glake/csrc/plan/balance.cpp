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

// What numbers of copies at once are judged by: the rates until all paths have ended, or only those
// at the start.
enum class By { kEnd, kStart };

// How many copies each path of all plans has at once, and what comes of it.
struct Outcome {
  std::vector<size_t> at_once;
  std::vector<Rate> rates;  // of each path, at the start
  // How much of its planned rate each path reaches at least, and which path decides that.
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

  // The numbers by which all paths end soonest. They are the usual ones, unless others gain much.
  Outcome best() const {
    const Outcome common = until_end(usual(), 0);
    Outcome found = search(common, By::kEnd);
    return found.reached > TransferTuning::kBalanced * common.reached ? found : common;
  }

  // Numbers like these, by which each path has nearly its planned rate from the start.
  std::vector<size_t> nearest(const Outcome& found) const {
    return search(at_start(found.at_once), By::kStart).at_once;
  }

 private:
  struct Member {
    const PlannedPath* path;
    bool plain;  // the whole copy is one driver copy, whatever it would need
  };

  Outcome search(Outcome best, By by) const {
    for (int round = 0; round < TransferTuning::kBalances; ++round) {
      const Outcome from = best;
      for (const double scale : {1.0, 1.5, 2.0}) take_better(about(from, scale), by, &best);
      if (best.reached == from.reached) break;
    }
    while (improve(by, &best)) {
    }
    return best;
  }

  bool take_better(std::vector<size_t> at_once, By by, Outcome* best) const {
    const double worth = TransferTuning::kNearer * best->reached;
    Outcome tried =
        by == By::kEnd ? until_end(std::move(at_once), worth) : at_start(std::move(at_once));
    if (tried.reached <= worth) return false;
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

  topology::FairRates flows(const std::vector<size_t>& at_once) const {
    topology::FairRates fair(topology_, all_of_each_);
    for (size_t i = 0; i < members_.size(); ++i) {
      fair.add(route_of(members_[i].path->path), static_cast<double>(at_once[i]));
    }
    return fair;
  }

  Outcome at_start(std::vector<size_t> at_once) const {
    const std::vector<char> open(members_.size(), 1);
    std::vector<Rate> rates = flows(at_once).rates(open);
    Outcome outcome{std::move(at_once), std::move(rates), kNever};
    for (size_t i = 0; i < members_.size(); ++i) {
      const double part = outcome.rates[i] / std::max(members_[i].path->rate, kSlowest);
      if (part >= outcome.reached) continue;
      outcome.reached = part;
      outcome.last = i;
    }
    return outcome;
  }

  // Each path carries what it should in a unit of time. Once it ends, others have its links. Paths
  // that end at nearly the same time do so together. If less than `worth` is sure to be reached, it
  // returns early, with nothing reached.
  Outcome until_end(std::vector<size_t> at_once, double worth) const {
    topology::FairRates fair = flows(at_once);
    std::vector<double> left;
    for (const Member& member : members_) left.push_back(member.path->rate);
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
  bool improve(By by, Outcome* best) const {
    if (members_.empty()) return false;
    std::vector<size_t> at_once = best->at_once;
    if (members_[best->last].plain || ++at_once[best->last] > TransferTuning::kMostAtOnce) {
      return false;
    }
    return take_better(std::move(at_once), by, best);
  }

  const topology::Topology& topology_;
  std::vector<Member> members_;            // the paths of all plans
  const std::vector<double> all_of_each_;  // empty: all of every limit
};

}  // namespace

void balance(const topology::Topology& topology, std::vector<TransferPlan>* plans) {
  const Balance balance(topology, *plans);
  const Outcome best = balance.best();
  const std::vector<size_t> nearest = balance.nearest(best);
  size_t i = 0;
  for (TransferPlan& plan : *plans) {
    for (PlannedPath& path : plan.paths) {
      path.at_once = best.at_once[i];
      path.nearest_at_once = nearest[i++];
    }
  }
}

}  // namespace glake::transfer
