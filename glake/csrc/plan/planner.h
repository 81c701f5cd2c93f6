// Computes the rate of each path of each copy from the capacity graph alone. It knows neither bytes
// nor time, calls no driver, and gives the same answer to the same question. What a copy really
// does is decided by transfer/run/scheduler.h, which asks here.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/transfer_tuning.h"
#include "plan/max_min_fair.h"
#include "plan/paths.h"
#include "plan/plan.h"
#include "plan/topology.h"

namespace glake::transfer {

struct PlannerOptions {
  double relay_gain = TransferTuning::kRelayGain, host_gain = TransferTuning::kHostGain;
  int relays = TransferTuning::kRelaysInARow;
  int paths = TransferTuning::kPathsOfOne;
};

// A demand or a setting that does not fit the machine, such as a GPU that it does not have.
struct PlanError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

class Planner {
 public:
  using Plans = std::vector<TransferPlan>;

  explicit Planner(const topology::Topology& topology, PlannerOptions options = {});

  // Shares the machine among all demands, max-min fair by weight. Answers are kept, so to ask the
  // same question again costs a look-up. Any thread may call it. Throws PlanError.
  std::shared_ptr<const Plans> find(const std::vector<Demand>& demands) const;
  Plans plan(const std::vector<Demand>& demands) const { return *find(demands); }
  // The plan of the last of these demands.
  PlanPtr find_last(const std::vector<Demand>& demands) const {
    std::shared_ptr<const Plans> plans = find(demands);
    const TransferPlan* const last = &plans->back();
    return {std::move(plans), last};
  }

  // The edge has been found to run at `factor` times the topology's rate; 0: it is dead. Throws
  // PlanError if there is no such edge.
  void set_scale(int edge, double factor);
  // Whether the GPU may relay. If it may not, it still sends and receives for itself. Throws
  // PlanError if there is no such GPU.
  void set_relay(int gpu, bool usable);
  // `factors` are the parts of the topology's limits that this process may use, in the order of the
  // limits. If it is empty, the process may use all of every limit. They multiply the factors of
  // set_scale(), which stay as they are.
  void lend(std::vector<double> factors);
  // It changes whenever the same question may have another answer.
  uint64_t version() const { return version_; }
  size_t limits() const { return nominal_.limits().size(); }

 private:
  using Ends = std::tuple<int, int, int, int>;

  static Ends ends_of(const Demand& demand);
  const Candidates& candidates(const Demand& demand) const;
  void check(const Place& place) const;
  Plans make(const std::vector<Demand>& demands) const;
  std::vector<Rate> plain_rates(const std::vector<Demand>& demands) const;
  // How many times its plain rate the paths of the demand must bring.
  double least_gain(const Demand& demand) const;
  Rate pace_of(const std::vector<Demand>& demands, const std::vector<Party>& parties,
               const std::vector<Rate>& plain) const;
  // The reason why the candidate cannot be used; empty: it can.
  std::string closed(const Candidate& candidate, const Demand& demand) const;
  void refresh();  // under the lock: recomputes topology_
  // The demands' shares by paths of at most so many relays.
  std::vector<Party> shares(const std::vector<Demand>& demands, const std::vector<Rate>& plain,
                            size_t relays, std::vector<std::string>* too_little) const;
  bool has_long_paths(const std::vector<Demand>& demands) const;
  std::vector<Party> parties(const std::vector<Demand>& demands,
                             const std::vector<bool>& direct_only, size_t relays) const;
  std::vector<Refusal> refusals(const std::vector<Party>& parties, size_t number,
                                const Demand& demand, const std::string& too_little) const;
  std::string why_not(const Candidate& candidate, const std::vector<Party>& parties) const;

  const PlannerOptions options_;
  const topology::Topology nominal_;
  std::atomic<uint64_t> version_{1};
  mutable std::mutex mutex_;
  topology::Topology topology_;       // nominal_ times scale_ times lent_
  std::vector<double> scale_, lent_;  // by limit; lent_ may be empty
  std::vector<bool> may_relay_;
  mutable std::map<Ends, Candidates> candidates_;
  mutable std::map<Ends, topology::Route> plain_;
  mutable std::unordered_map<std::string, std::shared_ptr<const Plans>> known_;
};

}  // namespace glake::transfer
