// What each path of a plan carries of a copy whose chunks are all enqueued at once: nothing is
// moved from a slow path to a fast one afterwards, so that all should end together.
#pragma once

#include <vector>

#include "transfer/call/request.h"
#include "transfer/run/flow_forecast.h"

namespace glake::transfer {

struct PathShare {
  PlannedPath path;
  std::vector<Range> chunks;  // in order
  size_t buffers = 1;         // chunks between two hops, at most
  Bytes bytes() const;
};

struct Shares {
  std::vector<PathShare> paths;
  std::vector<FlowForecast::Flow> flows;  // what the forecast may be told of it
  double end_ns = 0;                      // from now, when it should be done
  double calls_ns = 0;                    // that the caller waits for its calls
};

// Paths that would carry less than is worth a copy are left out. `copy_ns`: what a copy's start
// costs. `alone`: no other copy is under way, so that calls keep the thread from none.
Shares share_out(const Request& request, const TransferPlan& plan, uint64_t copy_ns, uint64_t now,
                 bool alone, FlowForecast* forecast);
// When one plain copy would be done, from now.
double plain_end_ns(const Request& request, const PlannedPath& direct, uint64_t copy_ns,
                    uint64_t now, FlowForecast* forecast);

}  // namespace glake::transfer
