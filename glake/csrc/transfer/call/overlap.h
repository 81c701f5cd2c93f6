// Whether stretches of memory that a copy reads and writes overlap.
#pragma once

#include <vector>

#include "base/types.h"

namespace glake::transfer {

// A stretch of memory that a copy reads or writes.
struct Access {
  Address begin = 0, end = 0;
  bool written = false;
};

// An address that is written twice, or written and also read; 0: there is none.
struct Overlap {
  Address at = 0;
  bool written_twice = false;
};

// Takes time linear in the number of accesses, because copies of blocks have tens of thousands.
Overlap find_overlap(std::vector<Access> accesses);

}  // namespace glake::transfer
