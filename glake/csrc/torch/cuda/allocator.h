// glake as torch's CUDA allocator. It is a true CUDAAllocator. So torch's statistics, snapshots,
// pools and CUDA graphs work with it, and tensors can be sent between processes. It adds no policy.
// Each function translates what torch asks into glake's terms. One of the parts of this class then
// does the work.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch/cuda/device_memory.h"
#include "torch/cuda/device_statistics.h"
#include "torch/cuda/foreign.h"
#include "torch/cuda/history.h"
#include "torch/cuda/ipc_handles.h"
#include "torch/cuda/oom_observers.h"
#include "torch/cuda/pool_checkpoints.h"
#include "torch/cuda/private_pools.h"
#include "torch/cuda/snapshots.h"
#include "torch/cuda/torch_blocks.h"
#include "torch/cuda/torch_devices.h"
#include "torch/library.h"

namespace glake::adapter {

using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::cuda::CUDAStream;

class CudaAllocator final : public native::CUDAAllocator {
 public:
  // The first call makes it. It is never destroyed, because tensors outlive static destructors.
  static CudaAllocator& instance();
  CudaLibrary& library() { return library_; }
  // Both are called before the first allocation.
  void set_legacy_pools() { foreign_.set_legacy(); }
  void start_with_fraction(double fraction) { memory_.start_with(fraction); }
  void process_exits() { exiting_.store(true); }
  bool exiting() const { return exiting_.load(std::memory_order_relaxed); }
  void refused_free() noexcept;  // counts it, and warns of the first one
  uint64_t refused_frees() const { return refused_frees_.load(); }

  // Blocks.
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

  // A device's memory, and other processes.
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

  // Statistics.
  caching::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;

  // Private pools.
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

  // Snapshots, history and observers.
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
  CudaAllocator() = default;
  static void deleter(void* ptr);
  static DataPtr data_ptr(void* ptr, int device);

  CudaLibrary library_;
  std::atomic<bool> exiting_{false};
  std::atomic<uint64_t> refused_frees_{0};
  TorchDevices devices_;
  ForeignPools foreign_{library_};
  History history_{library_};
  PrivatePools pools_{library_, devices_, foreign_};
  PoolCheckpoints checkpoints_{library_, devices_, foreign_};
  OomObservers observers_{library_, foreign_};
  TorchBlocks blocks_{library_, devices_, pools_, foreign_, history_, observers_};
  DeviceMemory memory_{library_, devices_, pools_, foreign_};
  DeviceStatistics statistics_{library_, devices_, foreign_, observers_};
  Snapshots snapshots_{library_, devices_, foreign_, history_};
  IpcHandles ipc_{library_, devices_, blocks_};
};

}  // namespace glake::adapter
