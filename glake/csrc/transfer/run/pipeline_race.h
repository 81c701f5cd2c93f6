// Computes when the chunks of a path have gone over all of its hops.
#pragma once

#include <limits>
#include <vector>

#include "base/transfer_tuning.h"
#include "base/types.h"
#include "plan/plan.h"

namespace glake::transfer {

// What chunks meet on their way.
struct PipelineTerms {
  std::vector<Rate> paces;                // how fast each hop is
  bool joined = false;                    // the first two hops share their streams (Pipeline)
  size_t flows = TransferTuning::kFlows;  // how many streams each hop has
  size_t buffers = 1;                     // how many chunks may be between two hops
  // What the start of a copy costs. On a hop that is `singly` a chunk is as many copies as it has
  // pieces.
  double start_ns = 0;
  std::vector<char> singly;
  double piece = 0;      // bytes; 0: each chunk is in one piece
  bool in_rows = false;  // one copy may have many pieces
  double calls_ns = 0;   // the time of the calls for one chunk; 0: they have been made
};

// How many copies a chunk takes on a hop that is `singly`, on average.
double copies_of(double chunk, double piece, bool in_rows);
// After how many ns the last chunk has landed. The chunks use the streams of a hop in turn, and the
// copies that flow on a hop have equal parts of its rate. `chunks`: their bytes. Once it is
// sure to be more than `most`, it returns early, with less than is true, but more than `most`.
double pipeline_ns(const PipelineTerms& terms, const std::vector<double>& chunks,
                   double most = std::numeric_limits<double>::infinity());

}  // namespace glake::transfer
