// What each path of a plan carries of a copy whose chunks are all enqueued at once: nothing is
// moved from a slow path to a fast one afterwards, so that all should end together.
#pragma once

#include <vector>

#include "base/transfer_tuning.h"
#include "transfer/call/request.h"
#include "transfer/run/bursts.h"
#include "transfer/run/flow_forecast.h"

namespace glake::transfer {

// The same copy with the bytes of each socket's host memory one after another, so that a chunk may
// be of several of its stripes.
Request by_socket(Request request);

struct PathShare {
  const PlannedPath* path;    // of the plan
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

// How a copy is dealt out: by what each path will find free of its links, or by its planned rate;
// and how many copies the same thread is to begin next.
struct Deal {
  bool by_rate = false;
  size_t followers = 0;
};

// Paths that would carry less than is worth a copy are left out. `copy_ns`: what a copy's start
// costs.
Shares share_out(const Request& request, const TransferPlan& plan, const Deal& how,
                 uint64_t copy_ns, uint64_t now, FlowForecast* forecast);
// A copy that is expected to begin now, too.
struct Expected {
  PlanPtr plan;
  Bytes bytes = 0;
};
// What is known, when a copy begins, of those that the same thread will begin right after it.
struct Outlook {
  BurstWay way = BurstWay::kApart;
  bool known = false;          // else there may be others
  bool followed = false;       // there are, for certain
  PlanPtr plan;                // unless apart
  std::vector<Expected> next;  // unless apart
  // What the caller's time counts against the copy's own.
  double calls_weigh() const;
};
std::vector<FlowForecast::Flow> flows_of(const Expected& copy, uint64_t copy_ns,
                                         const FlowForecast& forecast);
// When one plain copy would be done, from now.
double plain_end_ns(const Request& request, const PlannedPath& direct, uint64_t copy_ns,
                    uint64_t now, FlowForecast* forecast);

}  // namespace glake::transfer
