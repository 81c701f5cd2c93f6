// glake's own counts as torch's DeviceStats, without the memory of foreign pools.
#pragma once

#include "torch/cuda/version.h"
#include "torch/library.h"

namespace glake::adapter {

caching::DeviceStats own_stats(const CudaLibrary& library, int device);

}  // namespace glake::adapter
