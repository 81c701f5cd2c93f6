// Private pools that have their own allocator.
#include "pools.h"

using namespace testing;

// Gives host memory, and counts its calls. glake never calls its other functions.
struct Foreign final : native::CUDAAllocator {
  int allocations = 0, frees = 0;
  cudaStream_t asked = nullptr;
  DataPtr allocate(size_t bytes) override { return {raw_alloc(bytes), c10::Device(c10::kCUDA, 0)}; }
  void* raw_alloc(size_t bytes) override { return raw_alloc_with_stream(bytes, nullptr); }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    if (bytes > 100 * kMiB) return nullptr;
    ++allocations;
    asked = stream;
    return std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  }
  void raw_delete(void* ptr) override {
    ++frees;
    std::free(ptr);
  }
  void copy_data(void*, const void*, std::size_t) const override {}
  void init(int) override {}
  bool initialized() override { return true; }
  double getMemoryFraction(c10::DeviceIndex) override { return 1; }
  void setMemoryFraction(double, c10::DeviceIndex) override {}
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override {
    return {};
  }
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void emptyCache(MempoolId_t) override {}
  void cacheInfo(c10::DeviceIndex, size_t*) override {}
  void* getBaseAllocation(void* ptr, size_t*) override { return ptr; }
  void recordStream(const DataPtr&, CUDAStream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  native::SnapshotInfo snapshot(MempoolId_t, bool) override { return {}; }
  void beginAllocateToPool(c10::DeviceIndex, MempoolId_t,
                           std::function<bool(cudaStream_t)>) override {}
  void endAllocateToPool(c10::DeviceIndex, MempoolId_t) override {}
  void releasePool(c10::DeviceIndex, MempoolId_t) override {}
  native::ShareableHandle shareIpcHandle(void*) override { return {}; }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { return {}; }
  void recordHistory(bool, native::CreateContextFn, size_t, native::RecordContext, bool,
                     const std::vector<std::string>&) override {}
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver) override {}
  void attachOomRejectionObserver(native::OomRejectionObserver) override {}
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker) override {}
  void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override {}
  cudaError_t memcpyAsync(void*, int, const void*, int, size_t, cudaStream_t, bool) override {
    return cudaSuccess;
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex,
                                                             MempoolId_t) override {
    return {};
  }
  native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex,
                                                 std::shared_ptr<native::AllocatorState>) override {
    return {};
  }
  std::string name() override { return "foreign"; }
};

TEST(foreign_pool) {
  auto foreign = std::make_shared<Foreign>();
  allocator()->createOrIncrefPool(0, kPool, foreign);
  CHECK_EQ(allocator()->getPoolUseCount(0, kPool), 1);
  CUDAStream stream = new_stream();
  OnStream on(stream);
  DataPtr ptr = from_pool(kPool, 3 * kMiB);
  void* where = ptr.get();
  CHECK_EQ(foreign->allocations, 1);
  CHECK(foreign->asked == stream.stream());
  CHECK(glake_block_info(where, nullptr, nullptr, nullptr) != 0);  // not glake's memory
  CHECK_EQ(held_by(kPool), 20 * kMiB);  // a segment, which small requests share
  CHECK_EQ(allocator()->getDeviceStats(0).allocated_bytes[0].current,
           static_cast<int64_t>(3 * kMiB));
  CHECK(allocator()->checkPoolLiveAllocations(0, kPool, {where}));
  CHECK(!thrown<c10::Error>([&] { allocator()->shareIpcHandle(where); }).empty());
  ptr.clear();
  CHECK_EQ(foreign->frees, 0);
  CHECK(from_pool(kPool, 3 * kMiB).get() == where);  // the pool kept it for the stream
  CHECK(has(thrown<c10::OutOfMemoryError>([] { from_pool(kPool, 200 * kMiB); }), "pool"));
  allocator()->endAllocateToPool(0, kPool);  // the refused request left it open
  allocator()->releasePool(0, kPool);
  DataPtr ours = allocator()->allocate(3 * kMiB);
  CHECK_EQ(foreign->allocations, 1);
  allocator()->emptyCache(kPool);
  CHECK_EQ(foreign->frees, 1);
  allocator()->releasePool(0, kPool);
  CHECK_EQ(allocator()->getPoolUseCount(0, kPool), 0);
  allocator()->emptyCache();
  CHECK_EQ(foreign.use_count(), 1L);  // glake let go of it
}

// Memory of a pool's own allocator counts against the limit, and idle memory makes room for it.
TEST(foreign_pool_limit) {
  auto foreign = std::make_shared<Foreign>();
  allocator()->createOrIncrefPool(0, kPool, foreign);
  allocator()->setMemoryFraction(0.25, 0);  // 64 of 256 MiB
  allocator()->allocate(40 * kMiB);         // idle from now on
  DataPtr ptr = from_pool(kPool, 60 * kMiB);
  CHECK_EQ(reserved(), 0);
  CHECK_EQ(allocator()->getDeviceStats(0).reserved_bytes[0].current,
           static_cast<int64_t>(60 * kMiB));
  CHECK(has(thrown<c10::OutOfMemoryError>([] { allocator()->allocate(10 * kMiB); }),
            "60.00 MiB of the limit taken by other allocators"));
  DataPtr little = allocator()->allocate(4 * kMiB);
  ptr.clear();  // the pool keeps it until a request of the pool needs room
  CHECK_EQ(foreign->frees, 0);
  OnStream on(new_stream());  // a stream without memory of the pool
  DataPtr other = from_pool(kPool, 30 * kMiB);
  CHECK_EQ(foreign->frees, 1);
  CHECK(has(thrown<c10::OutOfMemoryError>([] { from_pool(kPool, 40 * kMiB); }), "limit 64.00 MiB"));
  allocator()->endAllocateToPool(0, kPool);  // the refused request left it open
  other.clear();
  allocator()->emptyCache(kPool);
  DataPtr ours = allocator()->allocate(56 * kMiB);
}

// A thousand small blocks share few segments, which stay until the last of their blocks is free.
TEST(foreign_pool_shares_segments) {
  auto foreign = std::make_shared<Foreign>();
  allocator()->createOrIncrefPool(0, kPool, foreign);
  std::vector<DataPtr> kept;
  for (int i = 0; i < 1000; ++i) kept.push_back(from_pool(kPool, 8 * 1024));
  CHECK_EQ(foreign->allocations, 4);
  CHECK_EQ(held_by(kPool), 8 * kMiB);
  CHECK_EQ(live_of(kPool), size_t{1000 * 8 * 1024});
  kept.resize(1);
  allocator()->emptyCache(kPool);
  CHECK_EQ(foreign->frees, 3);
  allocator()->setNoSplit(0, kPool);
  kept.push_back(from_pool(kPool, 3 * kMiB));
  kept.push_back(from_pool(kPool, 3 * kMiB));
  CHECK_EQ(foreign->allocations, 6);
}

// A block that other streams used is not given out again before their work is done.
TEST(foreign_pool_record_stream) {
  auto foreign = std::make_shared<Foreign>();
  allocator()->createOrIncrefPool(0, kPool, foreign);
  CUDAStream owner = new_stream(), user = new_stream();
  OnStream on(owner);
  DataPtr source = allocator()->allocate(3 * kMiB), target = allocator()->allocate(3 * kMiB);
  DataPtr ptr = from_pool(kPool, 3 * kMiB);
  void* where = ptr.get();
  CUDA(cudaMemcpyAsync(target.get(), source.get(), 3 * kMiB, cudaMemcpyDeviceToDevice,
                       user.stream()));
  allocator()->recordStream(ptr, user);
  ptr.clear();
  DataPtr other = from_pool(kPool, 3 * kMiB);
  CHECK(other.get() != where);
  user.synchronize();
  DataPtr again = from_pool(kPool, 3 * kMiB);
  CHECK(again.get() == where);
}

// Memory goes back to the pool's allocator only outside of captures, because giving it back waits
// for the device.
TEST(markCapture) {
  auto foreign = std::make_shared<Foreign>();
  allocator()->createOrIncrefPool(0, kPool, foreign);
  from_pool(kPool, 3 * kMiB);
  allocator()->markCaptureBegin(0);
  allocator()->emptyCache(kPool);
  CHECK_EQ(foreign->frees, 0);
  allocator()->markCaptureEnd(0);
  allocator()->emptyCache(kPool);
  CHECK_EQ(foreign->frees, 1);
}

TEST(foreign_pool_use_on_oom) {
  auto foreign = std::make_shared<Foreign>();
  allocator()->createOrIncrefPool(0, kPool, foreign);
  DataPtr pooled = from_pool(kPool, 60 * kMiB);
  void* where = pooled.get();
  pooled.clear();
  DataPtr most = allocator()->allocate(180 * kMiB);
  auto refused = [](size_t bytes) {
    return !thrown<c10::OutOfMemoryError>([bytes] { allocator()->allocate(bytes); }).empty();
  };
  CHECK(refused(50 * kMiB));
  allocator()->setUseOnOOM(0, kPool, true);
  CHECK(refused(70 * kMiB));
  DataPtr lent = allocator()->allocate(50 * kMiB);
  CHECK(lent.get() == where);
  CHECK_EQ(allocator()->getDeviceStats(0).num_ooms, 2);  // none for what the pool lent
  CHECK(refused(50 * kMiB));
  lent.clear();
  CHECK(from_pool(kPool, 60 * kMiB).get() == where);
  CHECK_EQ(foreign->allocations, 1);
  CHECK_EQ(foreign->frees, 0);
}

// The adapter is not installed before tests named install_*.
TEST(install_after_initialisation_is_refused) {
  Foreign torchs_own;  // torch then counts as initialised
  native::allocator.store(&torchs_own);
  CHECK(has(install(), "CUDA is already initialised"));
  CHECK(allocator() == &torchs_own);
  native::allocator.store(nullptr);
  libglake_path = "/absent/libglake.so";
  CHECK(has(install(), "/absent/libglake.so"));
  CHECK(allocator() == nullptr);
}
