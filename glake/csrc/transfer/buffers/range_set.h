// Ranges that do not overlap. Adjacent ones are joined.
#pragma once

#include <vector>

#include "transfer/buffers/parts.h"

namespace glake::transfer {

class RangeSet {
 public:
  void add(Range range);
  Bytes bytes() const;
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;  // in order
};

}  // namespace glake::transfer
