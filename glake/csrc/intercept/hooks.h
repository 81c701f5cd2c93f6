// The functions that stand in for the driver's, exported by its names.
#pragma once

#include "intercept/names.h"

namespace glake::intercept {

// By the driver's names, whatever a header of another CUDA version declares under them.
#define X(symbol, base, version, takes) \
  __attribute__((visibility("default"))) CUresult hook_##symbol takes __asm__(#symbol);
INTERCEPT_ALL(X)
#undef X

}  // namespace glake::intercept
