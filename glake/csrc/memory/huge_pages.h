// Host memory in the processor's huge pages, for books that are read all over, so that few of the
// reads miss the processor's TLB.
#pragma once

#include <cstddef>

#include "base/types.h"

namespace glake {

class HugePages {
 public:
  static constexpr Bytes kBytes = 2 * kMiB;

  // kBytes of zeros, aligned to their size. The kernel is asked for one huge page, and gives it at
  // the first touch or not at all: nothing depends on that. Throws std::bad_alloc.
  static void* map();
  static void unmap(void* memory) noexcept;
  // What the process has mapped now. malloc's statistics do not count it.
  static Bytes mapped();
};

}  // namespace glake
