// Cuts what one path carries of a copy into chunks. All of them are enqueued in one go.
#pragma once

#include <memory>

#include "transfer/run/cut_search.h"

namespace glake::transfer {

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
  const Streams& streams() const { return cut_->streams; }
  // For how long the path's slowest hop carries nothing: until its first chunk flows, between
  // chunks, and from the last one's end there until that has landed.
  double delay_ns() const { return cut_->delay_ns; }

 private:
  double bytes_;
  std::shared_ptr<const Cut> cut_;
};

}  // namespace glake::transfer
