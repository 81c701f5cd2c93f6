// Events that another process has as well (memory.cpp).
#pragma once

#include <cuda.h>

namespace cudart {

bool is_shared(CUevent event);
void forget_shared(CUevent event);

}  // namespace cudart
