// What each path of a plan carries of a copy whose chunks are all enqueued at once: nothing is
// moved from a slow path to a fast one afterwards, so that all should end together.
#pragma once

#include <vector>

#include "transfer/call/request.h"
#include "transfer/run/link_times.h"

namespace glake::transfer {

struct PathShare {
  PlannedPath path;
  std::vector<Range> chunks;  // in order
  size_t lanes = 1;           // chunks that are on their way at once
  Bytes bytes() const;
};

// What is known of the paths and their links when a copy begins.
struct ShareTerms {
  std::vector<PathTimes> times;  // of each path of the plan
  std::vector<double> busy;      // ns, of each limit
  uint64_t copy_ns = 0;          // what a copy's start costs
};

// Paths that would carry less than is worth a copy are left out. `end_ns`: when it should be done.
std::vector<PathShare> share_out(const Request& request, const TransferPlan& plan,
                                 const ShareTerms& terms, double* end_ns);

}  // namespace glake::transfer
