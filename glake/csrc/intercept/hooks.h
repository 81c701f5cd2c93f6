// The functions that replace the driver's. They are exported by the driver's names.
#pragma once

#include "intercept/names.h"

namespace glake::intercept {

// These have the driver's names, whatever a header of another CUDA version declares by those names.
#define X(symbol, base, version, takes) \
  __attribute__((visibility("default"))) CUresult hook_##symbol takes __asm__(#symbol);
INTERCEPT_ALL(X)
#undef X

}  // namespace glake::intercept
