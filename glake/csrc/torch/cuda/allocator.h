// glake as torch's CUDA allocator: a true CUDAAllocator, so that all torch builds on one
// (statistics, snapshots, pools, CUDA graphs, tensors sent between processes) is there. It adds no
// policy: each function says in glake's terms what torch asks.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch/cuda/foreign.h"
#include "torch/cuda/history.h"
#include "torch/cuda/routes.h"
#include "torch/library.h"

namespace glake::adapter {

using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::cuda::CUDAStream;

class CudaAllocator final : public native::CUDAAllocator {
 public:
  // Made by the first call, never destroyed: tensors outlive static destructors.
  static CudaAllocator& instance();
  CudaLibrary& library() { return library_; }
  void set_legacy_pools() { foreign_.set_legacy(); }  // before the first allocation
  void process_exits() { exiting_.store(true); }
  bool exiting() const { return exiting_.load(std::memory_order_relaxed); }
  void refused_free() noexcept;  // counts it, and warns of the first
  uint64_t refused_frees() const { return refused_frees_.load(); }

  // allocate.cpp
  DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* ptr) override;
  DataPtr allocateWithAddress(size_t bytes, void* where) GLAKE_OVERRIDE_2_13;
  void recordStream(const DataPtr& ptr, CUDAStream stream) override;
  void recordStream(const DataPtr& ptr, c10::Stream stream) override;
  void* getBaseAllocation(void* ptr, size_t* bytes) override;
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                          cudaStream_t stream, bool peer_access) override;

  // manage.cpp
  void init(int device_count) override;
  bool initialized() override;
  std::string name() override;
  void enable(bool value) override;
  bool isEnabled() const override;
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  void emptyCache(MempoolId_t pool) override;
  void cacheInfo(DeviceIndex device, size_t* largest) override;
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override;
  void enablePeerAccess(DeviceIndex device, DeviceIndex to) override;
  native::ShareableHandle shareIpcHandle(void* ptr) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

  // stats.cpp
  caching::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;

  // pools.cpp
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override;
  void markCaptureBegin(DeviceIndex device) GLAKE_OVERRIDE_2_13;
  void markCaptureEnd(DeviceIndex device) GLAKE_OVERRIDE_2_13;
  void releasePool(DeviceIndex device, MempoolId_t pool) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override;
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<native::CUDAAllocator> allocator) override;
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool value) override;
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override;
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;
  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex device,
                                                             MempoolId_t pool) override;
  native::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<native::AllocatorState> state) override;

  // watch.cpp
  native::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override;
  bool isHistoryEnabled() override;
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr) GLAKE_OVERRIDE_2_12;
  void recordHistory(bool enabled, caching::CreateContextFn gather, size_t entries,
                     caching::RecordContext when, bool clear,
                     const std::vector<std::string>& skip_actions) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& what) override;
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
  bool supportsUserMetadata() GLAKE_OVERRIDE_2_14;
  void annotateMemory(const void* ptr, const std::string& metadata) GLAKE_OVERRIDE_2_14;
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override;
  void attachOomRejectionObserver(OomRejectionObserver observer) GLAKE_OVERRIDE_2_12;
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override;

 private:
  struct Checkpoint;
  // A block as torch's reports show it.
  struct Known {
    size_t bytes = 0;  // as asked for
    int device = 0;
    void* stream = nullptr;
    bool foreign = false, uncached = false;
  };

  CudaAllocator();
  void* obtain(size_t bytes, DeviceIndex device, cudaStream_t stream);
  void* obtain_uncached(size_t bytes, DeviceIndex device);
  bool give_back_uncached(void* ptr);  // false: it is none
  void* attempt(size_t bytes, int device, cudaStream_t stream, MempoolId_t pool);
  void* recover(size_t bytes, int device, cudaStream_t stream, MempoolId_t pool);
  bool make_room(int device, MempoolId_t pool);
  [[noreturn]] void out_of_memory(size_t bytes, int device, const std::string& text);
  struct Room {
    size_t free = 0, total = 0, allowed = 0;  // of the device
    size_t allocated = 0, reserved = 0;       // by torch
  };
  static std::string account(size_t bytes, int device, const Room& room, const std::string& text);
  bool give_back(void* ptr);  // false: refused, glake_last_error() says why
  static void deleter(void* ptr);
  DataPtr data_ptr(void* ptr, int device) const;
  bool describe(void* ptr, Known* out);
  // Whether profilers or torch's sanitizer hear of blocks on this thread now; and tells them.
  static bool told();
  void report(void* ptr, int64_t bytes, int device);

  DeviceIndex checked(DeviceIndex device) const;  // throws for no such device
  // Every allocation comes here, so a locked instruction is made only once.
  void use(int device) {
    if (!used(device)) used_.fetch_or(uint64_t{1} << device, std::memory_order_relaxed);
  }
  bool used(int device) const { return (used_.load(std::memory_order_relaxed) >> device & 1) != 0; }
  void require(int status) {
    if (status != GLAKE_OK) raise();
  }
  [[noreturn]] void raise(size_t bytes = 0);
  static glake_pool named(MempoolId_t pool) { return {pool.first, pool.second}; }
  bool capturing(int device) const;
  // Calls visit.segment() and then visit.block() for each block of it; `told`: as a snapshot, of
  // which the history has an event.
  template <typename Visit>
  void visit_memory(int device, Visit& visit, bool told = false);

  CudaLibrary library_;
  Routes<cudaStream_t> routes_;
  ForeignPools foreign_{library_};
  History history_{library_};
  std::atomic<bool> exiting_{false};
  std::atomic<bool> enabled_{true};
  std::atomic<int> devices_{0};
  std::atomic<uint64_t> used_{0};  // a bit each: only these are ever opened
  std::atomic<uint64_t> refused_frees_{0};
  std::array<std::atomic<int>, kMaxDevices> captures_{};
  std::array<std::atomic<double>, kMaxDevices> fractions_;  // as asked for; negative: never

  mutable std::mutex mutex_;  // of what follows; nothing is called with it held
  std::map<std::pair<int, MempoolId_t>, unsigned> pools_;  // glake's own in use, with their flags
  bool had_pools_ = false;
  std::atomic<bool> had_uncached_{false};
  struct Uncached {
    int device;
    size_t bytes;
  };
  std::unordered_map<void*, Uncached> uncached_;  // taken from the driver with caching off
  std::map<std::pair<int, MempoolId_t>, c10::CachingAllocator::StatArray> reserved_of_pool_;
  std::array<int64_t, kMaxDevices> rejections_{};
  std::vector<native::OutOfMemoryObserver> on_oom_;
  std::vector<OomRejectionObserver> on_rejection_;
};

template <typename Visit>
void CudaAllocator::visit_memory(int device, Visit& visit, bool told) {
  auto segment = [](void* self, const glake_segment_info* each) {
    static_cast<Visit*>(self)->segment(*each);
  };
  auto block = [](void* self, const glake_block_record* each) {
    static_cast<Visit*>(self)->block(*each);
  };
  require((told ? library_.visit_memory : library_.visit_blocks)(device, &visit, segment, block));
}

}  // namespace glake::adapter
