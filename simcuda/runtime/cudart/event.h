// Events whose handle was sent to another process (memory.cpp).
#pragma once

#include <cuda.h>

namespace cudart {

bool is_exported(CUevent event);
void forget_exported(CUevent event);

}  // namespace cudart
