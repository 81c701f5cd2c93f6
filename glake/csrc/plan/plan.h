// The parts of a transfer plan. Rates are GB/s (1e9), which is bytes per nanosecond.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/transfer_tuning.h"
#include "plan/topology.h"

namespace glake::transfer {

using Rate = double;
using topology::kSpread;
// Host memory that changes its socket every few MiB and has an equal part on each. A chunk lies on
// one socket and goes over that socket's paths. kSpread memory changes its socket every page, so
// all sockets serve each chunk.
constexpr int kStriped = -2;

// One end of a copy: a GPU's memory, or host memory of socket `node`, kSpread or kStriped.
struct Place {
  int gpu = -1;
  int node = kSpread;

  bool host() const { return gpu < 0; }
  bool operator==(const Place& other) const {
    return gpu == other.gpu && (!host() || node == other.node);
  }
};

// One driver copy, and the share of its rate that each edge carries. Between GPUs the source's copy
// engine writes. If the hop `reads`, it is the target's.
struct Hop {
  Place from, to;
  topology::Route route;
  bool reads = false;
};

// Hops, in order. Between two hops the bytes are in a buffer on the relay GPU, or in pinned host
// memory.
struct Path {
  std::vector<Hop> hops;
  // The GPU whose thread makes the path's driver calls: a relay GPU, or an end if the path has no
  // relay GPU or those have other paths' calls to make (workers.h).
  int worker = -1;
  std::string name;  // "cpu>cuda:2>cuda:0"
};

// The edges of all hops.
inline topology::Route route_of(const Path& path) {
  topology::Route route;
  for (const Hop& hop : path.hops) route.insert(route.end(), hop.route.begin(), hop.route.end());
  return route;
}

// `rate` is the path's rate in the plan. Copies on a link share it equally, so a path with more
// copies gets more. `at_once` is how many copies should flow over each hop at once, so that all
// paths end as soon as they can: one that ends early leaves its links to others. By
// `nearest_at_once` each path has nearly its rate from the start, which is worth a trial where the
// copy is made again. (Where threads carry the chunks, they pace the paths.)
struct PlannedPath {
  Path path;
  Rate rate = 0;
  size_t at_once = TransferTuning::kFlows, nearest_at_once = TransferTuning::kFlows;
};

// A path that was not taken, and why, in words.
struct Refusal {
  std::string path, reason;
};

constexpr uint32_t kAllGpus = ~uint32_t{0};

struct Demand {
  Place src, dst;
  double weight = 1;
  uint32_t relays = kAllGpus;  // a bit for each GPU that may relay for it
  bool few_relays = false;     // no path may have more than kFewRelays
  bool may_read = true;        // relays may read the memory of `src`, if that is a GPU's

  bool operator==(const Demand& other) const {
    return src == other.src && dst == other.dst && weight == other.weight &&
           relays == other.relays && few_relays == other.few_relays && may_read == other.may_read;
  }
};

// `rate` is the rate of all paths together. `plain` is the rate of the one copy that a program
// makes without glake, beside the same other demands. paths[0] is the direct path if that is used.
// If `paths` is empty, no path reaches `dst`.
struct TransferPlan {
  std::vector<PlannedPath> paths;
  Rate rate = 0, plain = 0;
  std::vector<Refusal> refusals;
};
// A plan that many copies share. Copying its names and routes for each would take long.
using PlanPtr = std::shared_ptr<const TransferPlan>;

// The same plan without the paths for which `unwanted` is true.
template <typename Unwanted>
PlanPtr without_paths(const PlanPtr& plan, Unwanted unwanted) {
  const std::vector<PlannedPath>& all = plan->paths;
  if (std::none_of(all.begin(), all.end(), unwanted)) return plan;
  auto left = std::make_shared<TransferPlan>(*plan);
  std::vector<PlannedPath>& paths = left->paths;
  paths.erase(std::remove_if(paths.begin(), paths.end(), unwanted), paths.end());
  return left;
}

}  // namespace glake::transfer
