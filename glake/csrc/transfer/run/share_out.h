// Decides which bytes of a copy each path of a plan carries, if all chunks are enqueued at once.
// Nothing can be moved from a slow path to a fast one afterwards, so all paths should end together.
#pragma once

#include <memory>
#include <vector>

#include "base/transfer_tuning.h"
#include "transfer/call/request.h"
#include "transfer/run/bursts.h"
#include "transfer/run/cut_search.h"
#include "transfer/run/flow_forecast.h"

namespace glake::transfer {

// Returns the same copy with the bytes of each socket's host memory one after another. Then a chunk
// may consist of several stripes. `rows`: a driver copy can have several.
Request by_socket(Request request, bool rows);

struct PathShare {
  const PlannedPath* path;    // a path of the plan
  std::vector<Range> chunks;  // in order
  Streams streams{};
  size_t buffers = 1;  // chunks between two hops, at most
  Bytes bytes() const;
};

// How a copy's bytes are divided among the paths. `by_rate`: by their planned rates; else by what
// each path will find free on its links. `followers` is the number of copies that the same thread
// begins next.
struct Deal {
  bool by_rate = false;
  size_t followers = 0;
};

// What each path of a plan carries.
struct Division {
  Deal how;
  std::vector<FlowForecast::Flow> flows;  // one for each path of the plan
  std::vector<size_t> at_once;            // of each path: how many of its copies flow at once
  std::vector<double> most;               // how many chunks each path may have
  double chunks = 1;                      // times as many chunks as else
  bool apart = false;                     // no hops share their streams
  double end_ns = 0;                      // after how many ns from now all should be done
};
using DivisionPtr = std::shared_ptr<const Division>;

struct Shares {
  DivisionPtr division;
  std::vector<PathShare> paths;
  std::vector<FlowForecast::Flow> flows;  // the copy in the form that the forecast takes
  double end_ns = 0;                      // after how many ns from now it should be done
  double calls_ns = 0;                    // for how many ns its calls hold up the caller
};

// Divides the copy's bytes among the plan's paths. A path that would carry too little to be worth a
// copy is left out. `copy_ns`: what the start of a copy costs.
Shares share_out(const Request& request, const TransferPlan& plan, const Deal& how,
                 uint64_t copy_ns, uint64_t now, FlowForecast* forecast);
// Cuts a copy that was divided before into chunks. The copy may lie in other stripes than that one.
Shares cut(const Request& request, const TransferPlan& plan, const DivisionPtr& division,
           uint64_t copy_ns, const FlowForecast& forecast);
// The socket whose host memory a path reads or writes. kSpread: none, or any.
int node_of(const Path& path);
// Copies of one stream that are expected to begin now. They flow one after the other.
struct Expected {
  PlanPtr plan;
  Bytes bytes = 0;    // of all of them
  size_t copies = 1;  // how many there are
  size_t before = 0;  // how many other copies the thread begins before the first of them
  StreamKey stream{};
  Demand demand{};
};
// What is known, when a copy begins, of the copies that the same thread will begin right after it.
struct Outlook {
  BurstWay way = BurstWay::kApart;
  bool known = false;         // what follows is known; if false, other copies may follow
  bool followed = false;      // some copy follows for certain
  bool chosen = false;        // the forecast has just chosen `way`
  bool timed = false;         // if it is a plain copy, it is to be timed (burst_trials.h)
  bool side_by_side = false;  // its chunks are enqueued in turns with those of the next copies
  PlanPtr plan;               // this copy's plan; null if `way` is kApart
  // The copies that follow in other streams; empty if `way` is kApart.
  std::vector<Expected> next;
  size_t behind = 0;                // how many streams follow, whichever way they go
  std::shared_ptr<LiveBurst> live;  // the burst that the copy belongs to; null: none is known
  // The weight of a nanosecond of the caller's time. A nanosecond of the copy's own time has the
  // weight 1.
  double calls_weigh() const;
  // How many copies wait for its calls, as far as is known.
  size_t followers() const { return side_by_side ? 0 : behind; }
};
std::vector<FlowForecast::Flow> flows_of(const Expected& copy, uint64_t copy_ns,
                                         const FlowForecast& forecast);
// After how many ns from now one plain copy would be done.
double plain_end_ns(const Request& request, const PlannedPath& direct, uint64_t copy_ns,
                    uint64_t now, FlowForecast* forecast);

}  // namespace glake::transfer
