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

// How far memory may be read, or written, from an address on.
struct Reach {
  // kNone: all of it. kUnmapped: there is no memory at `end`. kProtected: its protection forbids
  // the use. kNoPage: it is mapped, but there is nothing behind it, as in a file that was cut
  // short.
  enum class Limit { kNone, kUnmapped, kProtected, kNoPage };
  Address end = 0;  // the first byte that may not be used, or the end of the range
  Limit limit = Limit::kNone;
};

// Checks memory for reading or for writing. For a small range it makes the kernel provide the
// pages, which takes a few us and 30 us for each MiB. The copy would do that anyway. For large
// ranges, or for many, it reads the list of the process's mappings once, which takes half a
// millisecond for a thousand mappings. Of a mapped file it then asks for the last page only,
// because a file ends only once.
class HostAccess {
 public:
  explicit HostAccess(bool write) : write_(write) {}

  // Checks `bytes` from `at` on. `at` + `bytes` must not overflow.
  Reach reach(Address at, Bytes bytes);

 private:
  struct Mapping {
    Address begin, end;
    bool usable, file;
  };

  bool may_provide(Bytes bytes);
  int provide(Address begin, Address end) const;
  bool no_page(Address at) const;
  Address file_end(Address at, Address last) const;
  bool read_mappings();

  bool write_;
  Bytes provided_ = 0;  // bytes that the kernel was asked to provide so far
  int calls_ = 0;
  bool known_ = false;
  std::vector<Mapping> mappings_;  // by address; neighbours with the same protection are joined
};

}  // namespace glake::transfer
