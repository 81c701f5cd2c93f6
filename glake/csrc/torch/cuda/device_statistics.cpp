#include "torch/cuda/device_statistics.h"

#include <c10/core/AllocatorConfig.h>

#include <algorithm>

#include "torch/cuda/calls.h"
#include "torch/cuda/own_stats.h"

namespace glake::adapter {

namespace {

// Enters a number into a statistic that is only looked at from time to time.
void observe(c10::CachingAllocator::Stat* stat, int64_t now) {
  if (now > stat->current) stat->allocated += now - stat->current;
  if (now < stat->current) stat->freed += stat->current - now;
  stat->current = now;
  stat->peak = std::max(stat->peak, now);
}

}  // namespace

DeviceStatistics::Reserved DeviceStatistics::reserved_by_pool(int device, bool own) const {
  struct Count {
    Reserved reserved;
    void add(c10::MempoolId_t pool, bool large, uint64_t bytes) {
      reserved[pool][0] += static_cast<int64_t>(bytes);
      reserved[pool][large ? 2 : 1] += static_cast<int64_t>(bytes);
    }
    void segment(const glake_segment_info& each) {
      if (each.paused == 0) add({each.pool.first, each.pool.second}, each.large != 0, each.bytes);
    }
    void block(const glake_block_record&) {}
  } count;
  foreign_.visit(
      device, [&](const ForeignSegment& each) { count.add(each.pool, each.large, each.bytes); },
      [](void*, const ForeignBlock&) {});
  if (own) visit_memory(library_, device, count);
  count.reserved.erase(kNoPool);
  return std::move(count.reserved);
}

template <typename Act>
void DeviceStatistics::for_pools(int device, Act&& act) {
  for (auto& [key, stat] : reserved_of_pool_) {
    if (key.first == device) act(key.second, stat);
  }
}

caching::DeviceStats DeviceStatistics::of(c10::DeviceIndex device, bool by_pool) {
  caching::DeviceStats stats;
  // A look must not open a device.
  const bool used = devices_.used(devices_.checked(device));
  if (used) stats = own_stats(library_, device);
  stats.max_split_size =
      static_cast<int64_t>(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
  if (!used) return stats;
  foreign_.add_to(&stats, device);
  set_oom_rejections(&stats, observers_.rejections(device));
  stats.num_ooms -= observers_.forgiven(device);
  const Reserved reserved = reserved_by_pool(device, kStatsByPool && by_pool);
  std::lock_guard<std::mutex> guard(mutex_);
  for (const auto& [pool, bytes] : reserved) reserved_of_pool_[{device, pool}];
  for_pools(device, [&](c10::MempoolId_t pool, StatArray& stat) {
    auto now = reserved.find(pool);
    for (size_t i = 0; i < stat.size(); ++i) {
      observe(&stat[i], now == reserved.end() ? 0 : now->second[i]);
    }
    set_reserved_of_pool(&stats, pool, stat);
  });
  return stats;
}

void DeviceStatistics::reset_accumulated(c10::DeviceIndex device) {
  if (!devices_.used(devices_.checked(device))) return;
  require(library_, library_.reset_accumulated_stats(device));
  foreign_.reset_accumulated(device);
  observers_.reset_counts(device);
  std::lock_guard<std::mutex> guard(mutex_);
  for_pools(device, [](c10::MempoolId_t, StatArray& stat) {
    for (auto& each : stat) each.reset_accumulated();
  });
}

void DeviceStatistics::reset_peaks(c10::DeviceIndex device) {
  if (!devices_.used(devices_.checked(device))) return;
  require(library_, library_.reset_peak_stats(device));
  foreign_.reset_peaks(device);
  std::lock_guard<std::mutex> guard(mutex_);
  for_pools(device, [](c10::MempoolId_t, StatArray& stat) {
    for (auto& each : stat) each.reset_peak();
  });
}

}  // namespace glake::adapter
