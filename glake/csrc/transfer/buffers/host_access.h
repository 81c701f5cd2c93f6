// What the system lets this process do with pageable host memory, of which the driver knows nothing
// and nobody vouches for.
#pragma once

#include <sys/mman.h>

#include <vector>

#include "base/types.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace glake::transfer {

// Whether all of it is memory of this process, whatever may be done with it.
bool mapped(Address at, Bytes bytes);

// How far memory goes that may be used as wanted.
struct Reach {
  Address end = 0;              // the first byte that may not, or the end of what was asked about
  bool protected_here = false;  // there is memory at `end`, which may not be used so
};

// For reading, or for writing. Small ranges cost what the kernel takes to provide their pages (a
// few us, 30 us a MiB), which copying them needs anyway; large and many ones share one reading of
// the process's mappings, half a millisecond where it has a thousand.
class HostAccess {
 public:
  explicit HostAccess(bool write) : write_(write) {}

  // From `at` on, `bytes` at most. `at` + `bytes` is an address.
  Reach reach(Address at, Bytes bytes);

 private:
  struct Mapping {
    Address begin, end;
    bool usable;
  };

  bool provide(Address at, Bytes bytes);
  bool read_mappings();

  bool write_;
  Bytes provided_ = 0;  // asked for page by page, so far
  int calls_ = 0;
  bool known_ = false;
  std::vector<Mapping> mappings_;  // by address, neighbours of equal use joined
};

}  // namespace glake::transfer
