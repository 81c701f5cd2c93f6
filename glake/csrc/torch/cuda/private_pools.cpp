#include "torch/cuda/private_pools.h"

#include "torch/cuda/calls.h"

namespace glake::adapter {

using c10::DeviceIndex;
using c10::MempoolId_t;

void PrivatePools::retain(DeviceIndex device, MempoolId_t pool,
                          const ForeignPools::Allocator& allocator) {
  devices_.use(devices_.checked(device));
  if (foreign_.retain(device, pool, allocator)) return;
  require(library_, library_.pool_retain(device, named(pool)));
  std::lock_guard<std::mutex> guard(mutex_);
  flags_.emplace(std::make_pair(static_cast<int>(device), pool), 0u);
  had_any_.store(true);
}

void PrivatePools::release(DeviceIndex device, MempoolId_t pool) {
  devices_.checked(device);
  if (foreign_.release(device, pool)) return;
  require(library_, library_.pool_release(device, named(pool)));
  if (library_.pool_uses(device, named(pool)) != 0) return;
  std::lock_guard<std::mutex> guard(mutex_);
  flags_.erase({device, pool});
}

int PrivatePools::uses(DeviceIndex device, MempoolId_t pool) const {
  devices_.checked(device);
  int uses = foreign_.uses(device, pool);
  if (uses >= 0) return uses;
  uses = library_.pool_uses(device, named(pool));
  if (uses < 0) raise_error(library_);
  return uses;
}

// This also adds a user of the pool, because torch pairs this call with a release.
void PrivatePools::begin(DeviceIndex device, MempoolId_t pool,
                         std::function<bool(cudaStream_t)> filter) {
  TORCH_CHECK(pool != kNoPool, "glake: (0, 0) names no private pool");
  devices_.checked(device);
  routes_.begin(device, pool, std::move(filter));
  try {
    retain(device, pool, nullptr);
  } catch (...) {
    routes_.end(device, pool);
    throw;
  }
}

void PrivatePools::end(DeviceIndex device, MempoolId_t pool) {
  routes_.end(devices_.checked(device), pool);
}

void PrivatePools::capture_begins(DeviceIndex device) {
  captures_[static_cast<size_t>(devices_.checked(device))].fetch_add(1);
}

void PrivatePools::capture_ends(DeviceIndex device) {
  captures_[static_cast<size_t>(devices_.checked(device))].fetch_sub(1);
  // Only now may glake ask a stream of other code whether its capture is over.
  const auto stream = c10::cuda::getCurrentCUDAStream(device);
  if (of_others(stream)) tell_of_others(device, stream.stream());
}

bool PrivatePools::capturing(int device) const {
  if (captures_[static_cast<size_t>(device)].load() > 0) return true;
  if (!foreign_.any()) return false;  // only foreign pools need a closer look
  auto stream = c10::cuda::getCurrentCUDAStream(static_cast<DeviceIndex>(device)).stream();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

void PrivatePools::set_use_on_oom(DeviceIndex device, MempoolId_t pool, bool value) {
  if (foreign_.contains(devices_.checked(device), pool)) {
    foreign_.set_use_on_oom(device, pool, value);
  } else {
    set_flag(device, pool, GLAKE_POOL_USE_ON_OOM, value);
  }
}

void PrivatePools::set_no_split(DeviceIndex device, MempoolId_t pool) {
  if (foreign_.contains(devices_.checked(device), pool)) {
    foreign_.set_no_split(device, pool);
  } else {
    set_flag(device, pool, GLAKE_POOL_NO_SPLIT, true);
  }
}

void PrivatePools::set_flag(DeviceIndex device, MempoolId_t pool, unsigned flag, bool value) {
  unsigned flags = 0;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    unsigned& known = flags_[{device, pool}];
    known = value ? known | flag : known & ~flag;
    flags = known;
  }
  require(library_, library_.pool_set_flags(device, named(pool), flags));
}

bool PrivatePools::live_are(DeviceIndex device, MempoolId_t pool,
                            const std::unordered_set<void*>& expected) const {
  struct Live {
    MempoolId_t pool;
    const std::unordered_set<void*>& expected;
    bool inside = false, all_expected = true;
    size_t found = 0;
    void segment(const glake_segment_info& each) {
      inside = MempoolId_t{each.pool.first, each.pool.second} == pool;
    }
    void block(const glake_block_record& each) {
      if (inside && each.state == GLAKE_ACTIVE) count(reinterpret_cast<void*>(each.address));
    }
    void count(void* ptr) {
      ++found;
      all_expected &= expected.count(ptr) != 0;
    }
  } live{pool, expected};
  bool exists = true;
  if (foreign_.contains(devices_.checked(device), pool)) {
    foreign_.visit(
        device, [&](const ForeignSegment& each) { live.inside = each.pool == pool; },
        [&](void* ptr, const ForeignBlock& block) {
          if (live.inside && block.live) live.count(ptr);
        });
  } else {
    visit_memory(library_, device, live);
    exists = live.found > 0 || uses(device, pool) > 0;
  }
  TORCH_CHECK(exists, "glake: there is no pool (", pool.first, ", ", pool.second,
              ") on cuda:", static_cast<int>(device));
  return live.all_expected && live.found == expected.size();
}

}  // namespace glake::adapter
