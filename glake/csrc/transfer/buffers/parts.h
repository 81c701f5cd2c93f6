// The bytes of one transfer, in the order of its parts and without gaps. A chunk is a stretch of
// them, and has one or more pieces.
#pragma once

#include <vector>

#include "base/types.h"

namespace glake::transfer {

struct Part {
  Address dst = 0, src = 0;
  Bytes bytes = 0;
};

// [begin, end) of a transfer's bytes.
struct Range {
  Bytes begin = 0, end = 0;
  Bytes bytes() const { return end - begin; }
};

// Bytes of a stretch that are contiguous at both ends. `offset` counts from the transfer's first
// byte.
struct Piece {
  Address dst = 0, src = 0;
  Bytes bytes = 0, offset = 0;
};

class Parts {
 public:
  // Joins neighbours that are contiguous at both ends, and drops empty parts.
  explicit Parts(const std::vector<Part>& parts);

  Bytes total() const { return total_; }
  size_t count() const { return parts_.size(); }
  const Part& operator[](size_t i) const { return parts_[i]; }

  void pieces(Range range, std::vector<Piece>* out) const;
  // The end of a chunk of about `wanted` bytes from `begin` on. The end is at most `most`. A part
  // stays whole if that changes the chunk little. The number of parts in a chunk is bounded.
  Bytes chunk_end(Bytes begin, Bytes wanted, Bytes most) const;
  // The end of the part that is nearest to `end`, if the chunk changes by at most a quarter of its
  // bytes and has at most `longest`; else `end`. Chunks that are not longer than a part and a half
  // stay as they are: their lengths were chosen, and few parts are saved.
  Bytes part_end_near(Bytes begin, Bytes end, Bytes longest) const;
  // Whether most parts are as long as the one before and lie as far behind it as that one behind
  // its own.
  bool regular() const;

 private:
  size_t part_at(Bytes offset) const;

  std::vector<Part> parts_;
  std::vector<Bytes> starts_;  // of each part
  Bytes total_ = 0;
};

}  // namespace glake::transfer
