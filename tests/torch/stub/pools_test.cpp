// Private pools: routing, capture, checkpoints.
#include "pools.h"

#include <c10/core/StorageImpl.h>

#include <set>
#include <thread>

using namespace testing;

TEST(createOrIncrefPool) {
  allocator()->createOrIncrefPool(0, kPool);
  CHECK_EQ(allocator()->getPoolUseCount(0, kPool), 1);
  allocator()->createOrIncrefPool(0, kPool);
  CHECK_EQ(allocator()->getPoolUseCount(0, kPool), 2);
}

TEST(getPoolUseCount) {
  CHECK_EQ(allocator()->getPoolUseCount(0, kPool), 0);
  allocator()->createOrIncrefPool(0, kPool);
  CHECK_EQ(allocator()->getPoolUseCount(0, kPool), 1);
}

TEST(releasePool) {
  allocator()->createOrIncrefPool(0, kPool);
  DataPtr ptr = from_pool(kPool, 8 * kMiB);
  ptr.clear();
  allocator()->emptyCache();
  CHECK(held_by(kPool) > 0 || reserved() == 0);
  allocator()->releasePool(0, kPool);
  CHECK_EQ(allocator()->getPoolUseCount(0, kPool), 0);
  allocator()->emptyCache();
  CHECK_EQ(reserved(), 0);
  CHECK(!thrown<c10::Error>([] { allocator()->releasePool(0, kPool); }).empty());
}

// A pool keeps its memory: an allocation outside never gets it.
TEST(beginAllocateToPool) {
  allocator()->createOrIncrefPool(0, kPool);
  DataPtr ptr = from_pool(kPool, 8 * kMiB);
  void* where = ptr.get();
  CHECK(held_by(kPool) >= 8 * kMiB);
  ptr.clear();
  DataPtr outside = allocator()->allocate(8 * kMiB);
  CHECK(outside.get() != where);
  DataPtr again = from_pool(kPool, 8 * kMiB);
  CHECK(again.get() == where);
  CHECK(!thrown<c10::Error>([] { allocator()->beginAllocateToPool(0, kNone, &all); }).empty());
}

TEST(endAllocateToPool) {
  allocator()->beginAllocateToPool(0, kPool, &all);
  CHECK_EQ(allocator()->getPoolUseCount(0, kPool), 1);
  CHECK(!thrown<c10::Error>([] { allocator()->beginAllocateToPool(0, kPool, &all); }).empty());
  allocator()->endAllocateToPool(0, kPool);
  DataPtr outside = allocator()->allocate(8 * kMiB);
  CHECK_EQ(held_by(kPool), size_t{0});
  CHECK(!thrown<c10::Error>([] { allocator()->endAllocateToPool(0, kPool); }).empty());
}

TEST(filters) {
  CUDAStream first = new_stream(), second = new_stream();
  auto is = [](CUDAStream wanted) {
    return [wanted](cudaStream_t stream) { return stream == wanted.stream(); };
  };
  allocator()->beginAllocateToPool(0, kOther, &all);
  allocator()->beginAllocateToPool(0, kPool, is(first));  // the last that matches wins
  {
    OnStream on(first);
    DataPtr ptr = allocator()->allocate(4 * kMiB);
    CHECK(held_by(kPool) >= 4 * kMiB);
    CHECK_EQ(held_by(kOther), size_t{0});
  }
  OnStream on(second);
  DataPtr ptr = allocator()->allocate(4 * kMiB);
  CHECK(held_by(kOther) >= 4 * kMiB);
  CHECK_EQ(held_by(kNone), size_t{0});
  allocator()->endAllocateToPool(0, kPool);
  allocator()->endAllocateToPool(0, kOther);
}

// With nested torch.cuda.use_mem_pool() the inner pool serves the calling thread.
TEST(nested_pools) {
  auto of_this_thread = [mine = std::this_thread::get_id()](cudaStream_t) {
    return std::this_thread::get_id() == mine;
  };
  auto take = [] { allocator()->allocate(4 * kMiB).release_context(); };
  allocator()->createOrIncrefPool(0, kPool);
  allocator()->createOrIncrefPool(0, kOther);
  allocator()->beginAllocateToPool(0, kPool, of_this_thread);
  take();
  allocator()->beginAllocateToPool(0, kOther, of_this_thread);
  take();
  std::thread(take).join();  // another thread, like the one of a backward pass
  allocator()->endAllocateToPool(0, kOther);
  allocator()->releasePool(0, kOther);
  take();
  allocator()->endAllocateToPool(0, kPool);
  allocator()->releasePool(0, kPool);
  take();
  CHECK_EQ(live_of(kPool), 8 * kMiB);
  CHECK_EQ(live_of(kOther), 4 * kMiB);
  CHECK_EQ(live_of(kNone), 8 * kMiB);
}

// A torch.cuda.MemPool is made and ends, and a tensor outlives it.
TEST(mem_pool_lifetime) {
  for (int i = 0; i < 3; ++i) {
    allocator()->createOrIncrefPool(0, kPool);
    allocator()->setUseOnOOM(0, kPool, true);
    allocator()->setNoSplit(0, kPool);
    DataPtr outlives = from_pool(kPool, 8 * kMiB);
    from_pool(kPool, 4 * kMiB);
    CHECK_EQ(allocator()->getPoolUseCount(0, kPool), 1);
    allocator()->setUseOnOOM(0, kPool, false);
    allocator()->releasePool(0, kPool);
    allocator()->emptyCache(kPool);
    CHECK_EQ(held_by(kPool), 8 * kMiB);  // the rest is given back
    CHECK(allocator()->checkPoolLiveAllocations(0, kPool, {outlives.get()}));
    CHECK(allocator()->getDeviceStats(0).reserved_bytes_by_private_pools[kPool][0].current > 0);
    outlives.clear();
    allocator()->emptyCache(kPool);
    CHECK_EQ(held_by(kPool), size_t{0});
    allocator()->emptyCache(kPool);  // the pool has ended: no effect
  }
  CHECK_EQ(reserved(), 0);
  CHECK_EQ(glake_check(0), 0);
}

// A capture as torch.cuda.graph makes it. The stream's memory comes from the graph's pool and stays
// there.
TEST(graph_capture) {
  CUDAStream stream = new_stream();
  OnStream on(stream);
  allocator()->beginAllocateToPool(0, kPool, [](cudaStream_t asked) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CUDA(cudaStreamIsCapturing(asked, &status));
    return status == cudaStreamCaptureStatusActive;
  });
  CUDA(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeGlobal));
  allocator()->markCaptureBegin(0);
  void* where = nullptr;
  {
    DataPtr ptr = allocator()->allocate(8 * kMiB);
    where = ptr.get();
    CUDA(cudaMemsetAsync(where, 1, 8 * kMiB, stream.stream()));
    DataPtr other = allocator()->allocate(100);
  }
  allocator()->emptyCache();  // the capture goes on and keeps its memory
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CUDA(cudaStreamIsCapturing(stream.stream(), &status));
  CHECK(status == cudaStreamCaptureStatusActive);
  CHECK(held_by(kPool) >= 8 * kMiB);
  cudaGraph_t graph = nullptr;
  CUDA(cudaStreamEndCapture(stream.stream(), &graph));
  allocator()->markCaptureEnd(0);
  allocator()->endAllocateToPool(0, kPool);
  CHECK(graph != nullptr);
  CHECK(held_by(kPool) >= 8 * kMiB);
  allocator()->emptyCache();
  CHECK(held_by(kPool) >= 8 * kMiB);  // a replay writes there
  DataPtr outside = allocator()->allocate(8 * kMiB);
  CHECK(outside.get() != where);
  std::memset(where, 2, 8 * kMiB);
  allocator()->releasePool(0, kPool);
  outside.clear();
  allocator()->emptyCache();
  CHECK_EQ(reserved(), 0);
  CHECK_EQ(violations(), std::string("[]"));
}

TEST(emptyCache_of_a_pool) {
  allocator()->createOrIncrefPool(0, kPool);
  from_pool(kPool, 8 * kMiB);
  allocator()->allocate(8 * kMiB);
  CHECK(held_by(kPool) > 0);
  allocator()->emptyCache(kPool);
  CHECK_EQ(held_by(kPool), size_t{0});
  CHECK(reserved() >= static_cast<int64_t>(8 * kMiB));  // the device's own memory stays
}

TEST(reserved_bytes_by_private_pools) {
  allocator()->createOrIncrefPool(0, kPool);
  DataPtr ptr = from_pool(kPool, 8 * kMiB);
  auto now = allocator()->getDeviceStats(0);
  CHECK_EQ(now.reserved_bytes_by_private_pools.size(), size_t{1});
  CHECK(now.reserved_bytes_by_private_pools[kPool][0].current >= static_cast<int64_t>(8 * kMiB));
  ptr.clear();
  allocator()->releasePool(0, kPool);
  allocator()->emptyCache();
  auto later = allocator()->getDeviceStats(0).reserved_bytes_by_private_pools[kPool][0];
  CHECK_EQ(later.current, 0);
  CHECK(later.peak >= static_cast<int64_t>(8 * kMiB));
  allocator()->resetPeakStats(0);
  allocator()->resetAccumulatedStats(0);
  later = allocator()->getDeviceStats(0).reserved_bytes_by_private_pools[kPool][0];
  CHECK_EQ(later.peak, 0);
  CHECK_EQ(later.freed, 0);
}

TEST(setUseOnOOM) {
  allocator()->createOrIncrefPool(0, kPool);
  from_pool(kPool, 200 * kMiB);
  CHECK(!thrown<c10::OutOfMemoryError>([] { allocator()->allocate(100 * kMiB); }).empty());
  allocator()->setUseOnOOM(0, kPool, true);
  DataPtr ptr = allocator()->allocate(100 * kMiB);
  CHECK(ptr.get() != nullptr);
}

TEST(setNoSplit) {
  allocator()->createOrIncrefPool(0, kPool);
  allocator()->setNoSplit(0, kPool);
  DataPtr large = from_pool(kPool, 8 * kMiB);
  large.clear();
  DataPtr first = from_pool(kPool, 6 * kMiB), second = from_pool(kPool, 2 * kMiB);
  CHECK(held_by(kPool) >= 10 * kMiB);  // the second block was not cut out of the rest of the first
}

TEST(checkPoolLiveAllocations) {
  CHECK(!thrown<c10::Error>([] { allocator()->checkPoolLiveAllocations(0, kPool, {}); }).empty());
  allocator()->createOrIncrefPool(0, kPool);
  DataPtr a = from_pool(kPool, 3 * kMiB), b = from_pool(kPool, 1000);
  DataPtr outside = allocator()->allocate(1000);
  CHECK(allocator()->checkPoolLiveAllocations(0, kPool, {a.get(), b.get()}));
  CHECK(!allocator()->checkPoolLiveAllocations(0, kPool, {a.get()}));
  CHECK(!allocator()->checkPoolLiveAllocations(0, kPool, {a.get(), b.get(), outside.get()}));
  void* freed = b.get();
  b.clear();
  CHECK(!allocator()->checkPoolLiveAllocations(0, kPool, {a.get(), freed}));
  CHECK(allocator()->checkPoolLiveAllocations(0, kPool, {a.get()}));
}

// Blocks that were live at the checkpoint come back at their addresses. Later ones go.
TEST(checkpoint) {
  allocator()->createOrIncrefPool(0, kPool);
  DataPtr kept = from_pool(kPool, 3 * kMiB), dropped = from_pool(kPool, 5 * kMiB);
  void *keeps = kept.get(), *drops = dropped.get();
  auto state = allocator()->getCheckpointState(0, kPool);
  CHECK(state != nullptr);
  dropped.clear();
  DataPtr later = from_pool(kPool, 7 * kMiB);
  void* goes = later.release_context();
  native::CheckpointDelta delta = allocator()->setCheckpointPoolState(0, state);
  auto freed = [&](void* ptr) {
    for (void* each : delta.ptrs_freed) {
      if (each == ptr) return true;
    }
    return false;
  };
  CHECK(freed(goes));
  bool back = false;
  for (auto& each : delta.dataptrs_allocd) back |= each.get() == drops;
  CHECK(back);
  if (freed(keeps)) (void)kept.release_context();  // dataptrs_allocd then has its block
  CHECK(allocator()->checkPoolLiveAllocations(0, kPool, {keeps, drops}));
  delta.dataptrs_allocd.clear();
  kept.clear();
  CHECK(allocator()->checkPoolLiveAllocations(0, kPool, {}));
  struct Foreign : native::AllocatorState {};
  CHECK(!thrown<c10::Error>([] {
           allocator()->setCheckpointPoolState(0, std::make_shared<Foreign>());
         }).empty());
}

// Applies a delta as torch's Python binding does, for the storages of a replayed graph. Returns how
// many freed blocks still had an owner, which torch refuses.
static size_t take_over(native::CheckpointDelta delta,
                        const std::vector<c10::StorageImpl*>& storages) {
  std::set<void*> again;
  for (const DataPtr& each : delta.dataptrs_allocd) again.insert(each.get());
  size_t gone = 0;
  for (void* ptr : delta.ptrs_freed) gone += again.count(ptr) == 0 ? 1 : 0;
  for (DataPtr& each : delta.dataptrs_allocd) {
    c10::StorageImpl* owner = nullptr;
    for (auto* storage : storages) owner = storage->data() == each.get() ? storage : owner;
    if (owner == nullptr) {
      (void)each.release_context();
      continue;
    }
    CHECK(owner->data_ptr().get_context() == nullptr);
    owner->set_data_ptr_noswap(std::move(each));
  }
  return gone;
}

// torch's cudagraph trees. After a first graph's outputs a second path is recorded. Then the first
// graph is replayed, one of its outputs dies, and another path starts from there.
TEST(cudagraph_tree) {
  using c10::StorageImpl;
  static constexpr size_t kBytes = 3 * kMiB;
  auto storage_at = [](DataPtr ptr) {
    return c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), kBytes, std::move(ptr),
                                            nullptr, false);
  };
  auto without_owner = [](void* ptr) { return DataPtr(ptr, c10::Device(c10::kCUDA, 0)); };
  allocator()->createOrIncrefPool(0, kPool);
  auto kept = storage_at(from_pool(kPool, kBytes)), dies = storage_at(from_pool(kPool, kBytes));
  void *keeps = kept->mutable_data(), *dead = dies->mutable_data();
  auto state = allocator()->getCheckpointState(0, kPool);
  kept.reset();
  dies.reset();
  auto second = storage_at(from_pool(kPool, 4 * kBytes));  // this may be where the outputs were
  second.reset();

  kept = storage_at(without_owner(keeps));  // on replay torch knows the addresses
  CHECK_EQ(take_over(allocator()->setCheckpointPoolState(0, state), {kept.get()}), size_t{0});
  allocator()->raw_delete(dead);  // torch frees dead outputs
  CHECK(kept->data_ptr().get_deleter() == allocator()->raw_deleter());
  CHECK(allocator()->checkPoolLiveAllocations(0, kPool, {keeps}));
  auto other = storage_at(from_pool(kPool, 4 * kBytes));
  std::memset(keeps, 0x21, kBytes);
  std::memset(other->mutable_data(), 0x22, 4 * kBytes);
  CHECK(filled(keeps, 0x21, kBytes));
  other.reset();

  // The state is restored once more, while outputs are live. Their blocks change owners, and newer
  // blocks are gone.
  (void)kept->mutable_data_ptr().release_context();
  CHECK_EQ(take_over(allocator()->setCheckpointPoolState(0, state), {kept.get()}), size_t{0});
  other = storage_at(from_pool(kPool, 4 * kBytes));
  void* extra = other->mutable_data();
  CHECK(other->mutable_data_ptr().compare_exchange_deleter(allocator()->raw_deleter(),
                                                           &c10::detail::deleteNothing));
  (void)kept->mutable_data_ptr().release_context();
  CHECK_EQ(take_over(allocator()->setCheckpointPoolState(0, state), {kept.get()}), size_t{1});
  CHECK(allocator()->checkPoolLiveAllocations(0, kPool, {keeps, dead}));
  CHECK(!thrown<c10::Error>([&] { allocator()->raw_delete(extra); }).empty());
  allocator()->raw_delete(dead);
  kept.reset();
  other.reset();
  CHECK(allocator()->checkPoolLiveAllocations(0, kPool, {}));
  CHECK_EQ(glake_check(0), 0);
}

TEST(allocateWithAddress) {
  allocator()->createOrIncrefPool(0, kPool);
  DataPtr ptr = from_pool(kPool, 8 * kMiB);
  void* where = ptr.get();
  allocator()->beginAllocateToPool(0, kPool, &all);
  CHECK(!thrown<c10::Error>([&] { allocator()->allocateWithAddress(kMiB * 2, where); }).empty());
  ptr.clear();
  auto* middle = static_cast<char*>(where) + 4 * kMiB;
  DataPtr again = allocator()->allocateWithAddress(2 * kMiB, middle);
  CHECK(again.get() == middle);
  CHECK(again.get_deleter() == allocator()->raw_deleter());
  again.clear();
  CHECK_EQ(live_bytes(), 0);
}
