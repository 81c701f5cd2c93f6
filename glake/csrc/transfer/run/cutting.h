// Cuts what one path carries of a copy into chunks. All of them are enqueued in one go.
#pragma once

#include <memory>
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
};

// The time of the calls for so many chunks. `joined`: the first two hops share their streams.
double chunk_calls_ns(const Path& path, double chunks, size_t buffers, bool joined);
// How many buffers there are between two hops, for chunks of at most so many bytes of which so many
// flow at once.
size_t buffers_for(double longest, size_t flows);
// The longest chunk of a relayed path over which so many chunks flow at once.
Bytes longest_chunk(size_t flows);

// A direct path has a few chunks, which flow side by side to the end. For a relayed path, a model
// of its hops (pipeline_race.h) says how many chunks are best, how long each of them is, and
// whether the first two hops share their streams. The best cut takes the least time, that of its
// calls included.
//
// While the slowest hop has chunks left, the hops behind it lose no time, as they are faster. Only
// what they do after its end counts. So the last chunk is short, and each chunk before it may be
// longer by what those hops gain. With hops in front of the slowest one it is the other way round.
class Cutting {
 public:
  Cutting(const Path& path, const CutTerms& terms, double bytes);

  // The size of the next chunk. `done` bytes are cut and `left` bytes are left. The next `range`
  // bytes of those left are in one piece.
  Bytes next(Bytes done, Bytes left, Bytes range) const;
  bool joined() const { return cut_->joined; }
  // For how long the path's slowest hop carries nothing: until its first chunk flows, between
  // chunks, and from the last one's end there until that has landed.
  double delay_ns() const { return cut_->delay_ns; }

  struct Cut {
    std::vector<double> ends;  // of each chunk, as a part of the bytes
    bool joined = false;
    double delay_ns = 0;
    double longest = 0;  // bytes that one buffer holds; 0: the path has no buffers
  };

 private:
  double bytes_;
  std::shared_ptr<const Cut> cut_;
};

}  // namespace glake::transfer
