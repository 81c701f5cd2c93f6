// Computes ahead how the copies that the driver has already, and a copy that begins now, share the
// links. Copies in flight get max-min fair shares (plan/fair_rates.h) until they are done. Copies
// of one stream flow one after the other.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "driver/driver.h"
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
  // How fast the hop would be alone.
  Rate alone(const Hop& hop) const;
  // What a plan's paths take of each limit of the topology, at their planned rates.
  std::vector<double> loads(const TransferPlan& plan) const;
  // Adds to each limit's sum what a flow of `much` over the route takes of that limit.
  void add_load(const topology::Route& route, double much, std::vector<double>* sums) const;
  // How fast a hop is while the plan's other paths flow. `planned` is the planned rate of the hop's
  // path. The hop is faster than planned if its tightest limit has room.
  Rate pace(const Hop& hop, Rate planned, const std::vector<double>& loads) const;
  // Fills in the bytes of each path, so that the paths of a stock end together. Returns after how
  // many ns all stocks are done. They begin now, or when their stream comes to them: the flows that
  // run in `own` do not run beside them. The same holds for the next two functions.
  double share(uint64_t now, const std::vector<Stock>& stocks, std::vector<Flow>* paths,
               StreamKey own = {});
  // After how many ns all of these flows are done.
  double end_ns(uint64_t now, const std::vector<Flow>& flows, StreamKey own = {});
  // For how many ns the busiest limit would have work if these flows ran beside the running ones.
  // Of each stream, only the copy that flows now counts.
  double busiest(const std::vector<Flow>& flows, StreamKey own = {});
  // After how many ns these flows, and all that run but for those in the streams `without`, are
  // done.
  double all_end_ns(uint64_t now, const std::vector<Flow>& flows,
                    const std::vector<StreamKey>& without = {});
  // Whether no flow runs, but for those in `own`.
  bool idle(uint64_t now, StreamKey own = {});
  // Adds the flows of a copy that begins now, or when its stream comes to it. remove(key) ends
  // them. Flows without a key are never removed: they end once their bytes should have arrived.
  void add(uint64_t now, const void* key, std::vector<Flow> flows, StreamKey stream = {});
  void remove(const void* key);

 private:
  struct Copy {
    const void* key;
    std::vector<Flow> flows;
    std::vector<size_t> routes;  // of each flow: which of the queue's sums it is in
    bool done() const;
  };
  // Copies that flow one after the other.
  struct Queue {
    StreamKey stream;  // without a device: that of its only copy is not known
    std::deque<Copy> copies;
    std::vector<Flow> sums;  // of the copies' flows over one route
    Copy* first();           // the one that flows; null: all are done
    bool in(StreamKey own) const { return own.device >= 0 && stream == own; }
  };
  void advance(uint64_t now);
  void leap(double left);
  double limit_of(size_t limit) const;
  size_t add_queues(FlowRace* race, const std::vector<StreamKey>& without) const;
  double end_of(FlowRace* race, size_t awaited) const;
  static void add_sums(Queue* queue, Copy* copy);
  void forget_ended();

  const topology::Topology* topology_;
  std::vector<double> parts_;
  std::vector<Queue> queues_;
  uint64_t now_ = 0;  // the time for which queues_ holds
};

}  // namespace glake::transfer
