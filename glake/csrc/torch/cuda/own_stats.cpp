#include "torch/cuda/own_stats.h"

namespace glake::adapter {

namespace {

c10::CachingAllocator::StatArray converted(const glake_stat (&from)[3]) {
  c10::CachingAllocator::StatArray to;
  for (size_t i = 0; i < to.size(); ++i) {
    to[i].current = from[i].current;
    to[i].peak = from[i].peak;
    to[i].allocated = from[i].allocated;
    to[i].freed = from[i].freed;
  }
  return to;
}

}  // namespace

caching::DeviceStats own_stats(const CudaLibrary& library, int device) {
  caching::DeviceStats stats;
  glake_device_stats from{};
  TORCH_CHECK(library.get_stats(device, &from, sizeof from) == GLAKE_OK,
              "glake: no statistics of cuda:", device);
  stats.allocation = converted(from.allocation);
  stats.segment = converted(from.segment);
  stats.active = converted(from.active);
  stats.inactive_split = converted(from.inactive_split);
  stats.allocated_bytes = converted(from.allocated_bytes);
  stats.reserved_bytes = converted(from.reserved_bytes);
  stats.active_bytes = converted(from.active_bytes);
  stats.inactive_split_bytes = converted(from.inactive_split_bytes);
  stats.requested_bytes = converted(from.requested_bytes);
  stats.num_alloc_retries = from.alloc_retries;
  stats.num_ooms = from.ooms;
  stats.num_sync_all_streams = from.device_syncs;
  stats.num_device_alloc = from.device_allocs;
  stats.num_device_free = from.device_frees;
  return stats;
}

}  // namespace glake::adapter
