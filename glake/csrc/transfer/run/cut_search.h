// Finds how a relayed path is best cut into chunks: how many there are, how long each of them is,
// and whether the first two hops share their streams. A model of the hops (pipeline_race.h) says
// what a cut takes.
#pragma once

#include <vector>

#include "base/transfer_tuning.h"
#include "base/types.h"
#include "plan/plan.h"

namespace glake::transfer {

// What the chunks of a path depend on.
struct CutTerms {
  std::vector<Rate> paces;                // how fast each hop is while the copy's other paths flow
  size_t flows = TransferTuning::kFlows;  // how many of its copies flow at once on each hop
  double most = 1;                        // how many chunks there may be
  double blocked = 1;  // the weight of a ns of the caller's time against one of the copy's
  // Whether copy engines copy the pieces of a chunk, each by a copy of its own; else kernels do.
  bool by_engines = true;
  double piece = 0;      // bytes of a piece; 0: each chunk is in one piece
  bool in_rows = false;  // one copy may have many pieces
  uint64_t copy_ns = 0;  // what the start of a copy costs
  bool apart = false;    // no hops share their streams
  double times = 1;      // so many times as many chunks as seem best
  double crowd = 1;      // so many times as long its calls take, because of those of other paths
};

// The streams of each hop of a path, which its chunks use in turn.
struct Streams {
  size_t count = TransferTuning::kFlows;
  bool joined = false;  // the first two hops share theirs
};

// How many buffers there are between two hops, for chunks of at most so many bytes.
size_t buffers_for(const Path& path, double longest, const Streams& streams);
// The longest chunk of a relayed path with these streams.
Bytes longest_chunk(const Path& path, const Streams& streams);

struct Cut {
  std::vector<double> ends;  // of each chunk, as a part of the bytes
  Streams streams;
  double delay_ns = 0;
  double longest = 0;  // bytes that one buffer holds; 0: the path has no buffers
};

// Whether the first two hops may share their streams.
bool may_join(const Path& path, const CutTerms& terms);
// More chunks are not made of so many bytes, unless they would be too long.
double most_chunks(double bytes);
// The cut that takes the least time, that of its calls included.
Cut best_cut(const Path& path, const CutTerms& terms, double bytes);

}  // namespace glake::transfer
