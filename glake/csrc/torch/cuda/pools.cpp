// Private pools: CUDA graphs, torch.cuda.MemPool, the checkpoints of cudagraph trees.
#include "torch/cuda/allocator.h"

namespace glake::adapter {

// The blocks of a pool that were live at a moment.
struct CudaAllocator::Checkpoint final : native::AllocatorState {
  Checkpoint(const CudaLibrary& library, glake_checkpoint* state, int device)
      : library(library), state(state), device(device) {}
  ~Checkpoint() override { library.checkpoint_free(state); }
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const CudaLibrary& library;
  glake_checkpoint* state;
  int device;
};

void CudaAllocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                                       std::shared_ptr<native::CUDAAllocator> allocator) {
  use(checked(device));
  TORCH_CHECK(allocator.get() != this, "glake: a pool's own allocator cannot be glake itself");
  if (foreign_.retain(device, pool, allocator)) return;
  require(library_.pool_retain(device, named(pool)));
  std::lock_guard<std::mutex> guard(mutex_);
  pools_.emplace(std::make_pair(static_cast<int>(device), pool), 0u);
  had_pools_ = true;
}

void CudaAllocator::releasePool(DeviceIndex device, MempoolId_t pool) {
  checked(device);
  if (foreign_.release(device, pool)) return;
  require(library_.pool_release(device, named(pool)));
  if (library_.pool_uses(device, named(pool)) != 0) return;
  std::lock_guard<std::mutex> guard(mutex_);
  pools_.erase({device, pool});  // its flags end with it
}

int CudaAllocator::getPoolUseCount(DeviceIndex device, MempoolId_t pool) {
  checked(device);
  int uses = foreign_.uses(device, pool);
  if (uses >= 0) return uses;
  uses = library_.pool_uses(device, named(pool));
  if (uses < 0) raise();
  return uses;
}

// The pool has one more user until its owner releases it: torch's pairs are begin and release.
void CudaAllocator::beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                                        std::function<bool(cudaStream_t)> filter) {
  TORCH_CHECK(pool != kNoPool, "glake: (0, 0) names no private pool");
  checked(device);
  routes_.begin(device, pool, std::move(filter));
  try {
    createOrIncrefPool(device, pool, nullptr);
  } catch (...) {
    routes_.end(device, pool);
    throw;
  }
}

void CudaAllocator::endAllocateToPool(DeviceIndex device, MempoolId_t pool) {
  routes_.end(checked(device), pool);
}

// glake sees by itself which streams are under capture; what is counted here keeps foreign pools
// from waiting for the device meanwhile, which would end the capture.
void CudaAllocator::markCaptureBegin(DeviceIndex device) {
  captures_[static_cast<size_t>(checked(device))].fetch_add(1);
}
void CudaAllocator::markCaptureEnd(DeviceIndex device) {
  captures_[static_cast<size_t>(checked(device))].fetch_sub(1);
}

bool CudaAllocator::capturing(int device) const {
  if (captures_[static_cast<size_t>(device)].load() > 0) return true;
  if (!foreign_.any()) return false;  // nobody would ask further
  auto stream = c10::cuda::getCurrentCUDAStream(static_cast<DeviceIndex>(device)).stream();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

void CudaAllocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool value) {
  if (foreign_.contains(checked(device), pool)) {
    foreign_.set_use_on_oom(device, pool, value);
    return;
  }
  unsigned flags = 0;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    unsigned& known = pools_[{device, pool}];
    known = value ? known | GLAKE_POOL_USE_ON_OOM
                  : known & ~static_cast<unsigned>(GLAKE_POOL_USE_ON_OOM);
    flags = known;
  }
  require(library_.pool_set_flags(device, named(pool), flags));
}

void CudaAllocator::setNoSplit(DeviceIndex device, MempoolId_t pool) {
  if (foreign_.contains(checked(device), pool)) {
    foreign_.set_no_split(device, pool);
    return;
  }
  unsigned flags = 0;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    flags = pools_[{device, pool}] |= GLAKE_POOL_NO_SPLIT;
  }
  require(library_.pool_set_flags(device, named(pool), flags));
}

bool CudaAllocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                             const std::unordered_set<void*>& expected) {
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
  if (foreign_.contains(checked(device), pool)) {
    foreign_.visit(
        device, [&](const ForeignSegment& each) { live.inside = each.pool == pool; },
        [&](void* ptr, const ForeignBlock& block) {
          if (live.inside && block.live) live.count(ptr);
        });
  } else {
    visit_memory(device, live);
    exists = live.found > 0 || getPoolUseCount(device, pool) > 0;
  }
  TORCH_CHECK(exists, "glake: there is no pool (", pool.first, ", ", pool.second,
              ") on cuda:", static_cast<int>(device));
  return live.all_expected && live.found == expected.size();
}

std::shared_ptr<native::AllocatorState> CudaAllocator::getCheckpointState(DeviceIndex device,
                                                                          MempoolId_t pool) {
  TORCH_CHECK(!foreign_.contains(checked(device), pool),
              "glake: a pool with an allocator of its own, as every one has with "
              "private_pools=legacy, has no checkpoints");
  glake_checkpoint* state = library_.pool_checkpoint(device, named(pool));
  if (state == nullptr) raise();
  return std::make_shared<Checkpoint>(library_, state, device);
}

native::CheckpointDelta CudaAllocator::setCheckpointPoolState(
    DeviceIndex device, std::shared_ptr<native::AllocatorState> state) {
  auto* checkpoint = dynamic_cast<Checkpoint*>(state.get());
  TORCH_CHECK(checkpoint != nullptr && checkpoint->device == device,
              "glake: this state is not a checkpoint of cuda:", static_cast<int>(device));
  struct Changes {
    std::vector<void*> freed, allocated;
  } changes;
  require(library_.pool_restore(
      checkpoint->state, &changes,
      [](void* self, void* ptr) { static_cast<Changes*>(self)->freed.push_back(ptr); },
      [](void* self, void* ptr, size_t, void*) {
        static_cast<Changes*>(self)->allocated.push_back(ptr);
      }));
  native::CheckpointDelta delta;
  delta.ptrs_freed = std::move(changes.freed);
  for (void* ptr : changes.allocated) delta.dataptrs_allocd.push_back(data_ptr(ptr, device));
  return delta;
}

}  // namespace glake::adapter
