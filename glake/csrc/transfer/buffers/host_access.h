// What the system lets this process do with pageable host memory. The driver knows nothing of that
// memory, and no caller vouches for it.
#pragma once

#include <sys/mman.h>

#include <vector>

#include "base/types.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace glake::transfer {

// Whether all of it is mapped memory of this process, with any protection.
bool mapped(Address at, Bytes bytes);

// How much memory from an address on may be used as wanted.
struct Reach {
  Address end = 0;              // the first byte that may not be used so, or the end of the range
  bool protected_here = false;  // there is memory at `end`, but it may not be used so
};

// Checks memory for reading or for writing. For a small range the kernel provides its pages, which
// takes a few us and 30 us for each MiB. A copy needs that anyway. Large ranges, and many of them,
// share one reading of the process's mappings, which takes half a millisecond if there are a
// thousand.
class HostAccess {
 public:
  explicit HostAccess(bool write) : write_(write) {}

  // Checks at most `bytes` from `at` on. `at` + `bytes` must not overflow.
  Reach reach(Address at, Bytes bytes);

 private:
  struct Mapping {
    Address begin, end;
    bool usable;
  };

  bool provide(Address at, Bytes bytes);
  bool read_mappings();

  bool write_;
  Bytes provided_ = 0;  // bytes that the kernel was asked to provide so far
  int calls_ = 0;
  bool known_ = false;
  std::vector<Mapping> mappings_;  // by address; neighbours with the same protection are joined
};

}  // namespace glake::transfer
