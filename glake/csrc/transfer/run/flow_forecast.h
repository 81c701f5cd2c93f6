// Computes ahead how the copies that the driver has already, and a copy that begins now, share the
// links. Copies in flight get max-min fair shares (plan/fair_rates.h) until they are done.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "transfer/run/flow_race.h"

namespace glake::transfer {

class FlowForecast {
 public:
  using Flow = transfer::Flow;
  // Bytes that several paths share.
  struct Stock {
    double bytes = 0;
    std::vector<size_t> paths;
  };

  // `topology` may be null: nothing is known of the links then.
  explicit FlowForecast(const topology::Topology* topology) : topology_(topology) {}

  // Sets the part of each limit of the topology that this process may use; empty: all of every
  // limit. True if the parts have changed.
  bool set_parts(std::vector<double> parts);
  // The route of a path, and how fast each of its hops would be alone.
  topology::Route route_of(const Path& path) const;
  Rate alone(const Hop& hop) const;
  // What a plan's paths take of each limit of the topology, at their planned rates.
  std::vector<double> loads(const TransferPlan& plan) const;
  // Adds to each limit's sum what a flow of `much` over the route takes of that limit.
  void add_load(const topology::Route& route, double much, std::vector<double>* sums) const;
  // How fast a hop is while the plan's other paths flow. `planned` is the planned rate of the hop's
  // path. The hop is faster than planned if its tightest limit has room.
  Rate pace(const Hop& hop, Rate planned, const std::vector<double>& loads) const;
  // Fills in the bytes of each path, so that the paths of a stock end together. Returns after how
  // many ns all stocks are done.
  double share(uint64_t now, const std::vector<Stock>& stocks, std::vector<Flow>* paths);
  // After how many ns all of these flows are done. With `others_too`: all running flows as well.
  double end_ns(uint64_t now, const std::vector<Flow>& flows, bool others_too = false);
  // For how many ns the busiest limit would have work if these flows ran beside the running ones.
  double busiest(const std::vector<Flow>& flows) const;
  // Whether no flow runs.
  bool idle(uint64_t now);
  // Adds flows that begin now. remove(key) ends them. Flows without a key are never removed: they
  // end once their bytes should have arrived.
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
  uint64_t now_ = 0;  // the time for which running_ holds
};

}  // namespace glake::transfer
