// torch's DeviceStats: glake's own numbers, and besides them the memory of foreign pools.
#include "base/types.h"
#include "torch/cuda/allocator.h"

namespace glake::adapter {

using c10::CachingAllocator::StatArray;

namespace {

StatArray converted(const glake_stat (&from)[3]) {
  StatArray to;
  for (size_t i = 0; i < to.size(); ++i) {
    to[i].current = from[i].current;
    to[i].peak = from[i].peak;
    to[i].allocated = from[i].allocated;
    to[i].freed = from[i].freed;
  }
  return to;
}

// A number seen now, in a statistic that is only looked at from time to time.
void observe(c10::CachingAllocator::Stat* stat, int64_t now) {
  if (now > stat->current) stat->allocated += now - stat->current;
  if (now < stat->current) stat->freed += stat->current - now;
  stat->current = now;
  stat->peak = std::max(stat->peak, now);
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

caching::DeviceStats CudaAllocator::getDeviceStats(DeviceIndex device) {
  if (!used(checked(device))) return {};  // looking must not open a device
  caching::DeviceStats stats = own_stats(library_, device);
  foreign_.add_to(&stats, device);
  std::map<MempoolId_t, std::array<int64_t, 3>> reserved;
  auto count = [&](MempoolId_t pool, bool large, uint64_t bytes) {
    reserved[pool][0] += static_cast<int64_t>(bytes);
    reserved[pool][large ? 2 : 1] += static_cast<int64_t>(bytes);
  };
  foreign_.visit(
      device, [&](const ForeignSegment& each) { count(each.pool, each.large, each.bytes); },
      [](void*, const ForeignBlock&) {});
  bool pools = false;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    pools = kStatsByPool && had_pools_;
    set_oom_rejections(&stats, rejections_[static_cast<size_t>(device)]);
  }
  if (pools) {
    struct Count {
      decltype(count)& add;
      void segment(const glake_segment_info& each) {
        if (each.paused == 0) add({each.pool.first, each.pool.second}, each.large != 0, each.bytes);
      }
      void block(const glake_block_record&) {}
    } visit{count};
    visit_memory(device, visit);
  }
  reserved.erase(kNoPool);
  std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& [pool, bytes] : reserved) reserved_of_pool_[{device, pool}];
  for (auto& [key, stat] : reserved_of_pool_) {
    if (key.first != device) continue;
    auto now = reserved.find(key.second);
    for (size_t i = 0; i < stat.size(); ++i) {
      observe(&stat[i], now == reserved.end() ? 0 : now->second[i]);
    }
    set_reserved_of_pool(&stats, key.second, stat);
  }
  return stats;
}

void CudaAllocator::resetAccumulatedStats(DeviceIndex device) {
  if (!used(checked(device))) return;
  require(library_.reset_accumulated_stats(device));
  foreign_.reset_accumulated(device);
  std::lock_guard<std::mutex> guard(mutex_);
  rejections_[static_cast<size_t>(device)] = 0;
  for (auto& [key, stat] : reserved_of_pool_) {
    if (key.first != device) continue;
    for (auto& each : stat) each.reset_accumulated();
  }
}

void CudaAllocator::resetPeakStats(DeviceIndex device) {
  if (!used(checked(device))) return;
  require(library_.reset_peak_stats(device));
  foreign_.reset_peaks(device);
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [key, stat] : reserved_of_pool_) {
    if (key.first != device) continue;
    for (auto& each : stat) each.reset_peak();
  }
}

}  // namespace glake::adapter
