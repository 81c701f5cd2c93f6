// How the links will be shared by copies that the driver has already and by one that begins now:
// copies in flight get max-min fair shares (plan/fair_rates.h), until they are done.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "transfer/run/flow_race.h"

namespace glake::transfer {

class FlowForecast {
 public:
  using Flow = transfer::Flow;
  // Bytes that some of the paths carry among themselves.
  struct Pool {
    double bytes = 0;
    std::vector<size_t> paths;
  };

  // `topology` may be null: nothing is known of the links then.
  explicit FlowForecast(const topology::Topology* topology) : topology_(topology) {}

  // The part of each limit of the topology that this process may use; empty: all of every limit.
  // True if that is new.
  bool set_parts(std::vector<double> parts);
  // The route of a path, and how fast each of its hops would be alone.
  topology::Route route_of(const Path& path) const;
  Rate alone(const Hop& hop) const;
  // What a plan's paths take of each limit of the topology.
  std::vector<double> loads(const TransferPlan& plan) const;
  // Adds to each limit's sum what a flow of `much` over the route takes of that limit.
  void add_load(const topology::Route& route, double much, std::vector<double>* sums) const;
  // How fast a hop of a path with that planned rate is while the plan's other paths flow: faster
  // than planned by the room that its tightest limit has.
  Rate pace(const Hop& hop, Rate planned, const std::vector<double>& loads) const;
  // Fills in the bytes of each path, so that those of a pool end together. Returns in how many ns
  // all are done.
  double share(uint64_t now, const std::vector<Pool>& pools, std::vector<Flow>* paths);
  // In how many ns all of these are done; and what runs, with `others_too`.
  double end_ns(uint64_t now, const std::vector<Flow>& flows, bool others_too = false);
  // For how many ns the busiest limit would have work, with these beside what runs.
  double busiest(const std::vector<Flow>& flows) const;
  // Whether nothing runs.
  bool idle(uint64_t now);
  // These flows begin now. remove(key) ends them. Flows without a key are never removed: they end
  // once their bytes should have arrived.
  void add(uint64_t now, const void* key, std::vector<Flow> flows);
  void remove(const void* key);

 private:
  struct Running {
    const void* key;
    Flow flow;
  };
  void advance(uint64_t now);
  double limit_of(size_t limit) const;

  const topology::Topology* topology_;
  std::vector<double> parts_;
  std::vector<Running> running_;
  uint64_t now_ = 0;  // up to which it has been told
};

}  // namespace glake::transfer
