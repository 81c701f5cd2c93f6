#include "torch/cuda/allocator.h"

#include "base/types.h"
#include "torch/cuda/calls.h"
#include "torch/cuda/on_device.h"

namespace glake::adapter {

namespace {

cudaStream_t current_stream(DeviceIndex device) {
  return handle_of(c10::cuda::getCurrentCUDAStream(device));
}

}  // namespace

void tell_of_others(int device, cudaStream_t stream) {
  CudaLibrary& library = CudaAllocator::instance().library();
  require(library, library.stream_may_end(device, stream));
}

CudaAllocator& CudaAllocator::instance() {
  static auto* allocator = new CudaAllocator;
  return *allocator;
}

void CudaAllocator::refused_free() noexcept {
  uint64_t before = refused_frees_.fetch_add(1);
  try {
    std::string text;
    // A forked child cannot free its parent's memory, so it gets no warning.
    if (library_.error(&text) == GLAKE_FORKED || before > 0) return;
    TORCH_WARN("glake refused to free a tensor's memory (later refusals are only counted): ", text);
    // Warnings may be errors here, and a deleter must not throw.
  } catch (...) {
  }
}

// Never throws. Once static destructors run, it also frees nothing.
void CudaAllocator::deleter(void* ptr) {
  CudaAllocator& self = instance();
  if (ptr == nullptr || self.exiting()) return;
  try {
    if (!self.blocks_.give_back(ptr)) self.refused_free();
  } catch (...) {
    self.refused_frees_.fetch_add(1);
  }
}

DataPtr CudaAllocator::data_ptr(void* ptr, int device) {
  return {ptr, ptr, &deleter, c10::Device(c10::kCUDA, static_cast<DeviceIndex>(device))};
}

// --- Blocks ---------------------------------------------------------------------------------

DataPtr CudaAllocator::allocate(size_t bytes) {
  DeviceIndex device = current_device();
  void* ptr = nullptr;
  if (bytes > 0 && C10_UNLIKELY(!blocks_.caching())) {
    ptr = blocks_.obtain_uncached(bytes, device);
  } else if (bytes > 0) {
    ptr = blocks_.obtain(bytes, device, current_stream(device));
  }
  return data_ptr(ptr, device);
}

void* CudaAllocator::raw_alloc(size_t bytes) {
  if (bytes == 0) return nullptr;
  return raw_alloc_with_stream(bytes, current_stream(current_device()));
}

void* CudaAllocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  DeviceIndex device = current_device();
  thread_local cudaStream_t told = nullptr;
  // A bare handle does not say whose stream it is.
  if (C10_UNLIKELY(stream != told)) {
    if (stream != current_stream(device)) tell_of_others(device, stream);
    told = stream;
  }
  return C10_UNLIKELY(!blocks_.caching()) ? blocks_.obtain_uncached(bytes, device)
                                          : blocks_.obtain(bytes, device, stream);
}

DataPtr CudaAllocator::allocateWithAddress(size_t bytes, void* where) {
  if (where == nullptr || bytes == 0) return allocate(bytes);
  DeviceIndex device = current_device();
  return data_ptr(blocks_.obtain_at(where, bytes, device, current_stream(device)), device);
}

void CudaAllocator::raw_delete(void* ptr) {
  if (ptr == nullptr || exiting()) return;
  if (!blocks_.give_back(ptr)) raise_error(library_);
}

c10::DeleterFnPtr CudaAllocator::raw_deleter() const { return &deleter; }

void CudaAllocator::recordStream(const DataPtr& ptr, CUDAStream stream) {
  // Memory of another allocator (imported, pluggable) is left alone, as in torch.
  if (ptr.get() == nullptr || ptr.get_deleter() != &deleter) return;
  // The default streams of all GPUs have one handle. Another GPU's work on the memory is complete
  // when that GPU has been synchronised, so any of its streams stands for its default one.
  const bool elsewhere = stream.device_index() != ptr.device().index();
  if (elsewhere && stream == c10::cuda::getDefaultCUDAStream(stream.device_index())) {
    stream = c10::cuda::getStreamFromPool(false, stream.device_index());
  }
  blocks_.record_stream(ptr.get_context(), handle_of(stream));
}

void CudaAllocator::recordStream(const DataPtr& ptr, c10::Stream stream) {
  recordStream(ptr, CUDAStream(stream));
}

void* CudaAllocator::getBaseAllocation(void* ptr, size_t* bytes) {
  const KnownBlock known = blocks_.known(ptr);
  if (bytes != nullptr) *bytes = round_up(known.bytes, kAlignment);
  return ptr;
}

void CudaAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

// Without peer access, only cudaMemcpyPeerAsync reaches memory of another device.
cudaError_t CudaAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                       size_t bytes, cudaStream_t stream, bool peer_access) {
  if (peer_access || to_device == from_device) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

// --- A device's memory, and other processes -------------------------------------------------

void CudaAllocator::init(int device_count) { devices_.init(device_count); }
bool CudaAllocator::initialized() { return devices_.initialized(); }
std::string CudaAllocator::name() { return "glake"; }

// With caching switched off, every new tensor is a driver allocation of its own.
void CudaAllocator::enable(bool value) { blocks_.set_caching(value); }
bool CudaAllocator::isEnabled() const { return blocks_.caching(); }

double CudaAllocator::getMemoryFraction(DeviceIndex device) { return memory_.fraction(device); }
void CudaAllocator::setMemoryFraction(double fraction, DeviceIndex device) {
  memory_.set_fraction(fraction, device);
}

void CudaAllocator::emptyCache(MempoolId_t pool) {
  History::Freeing freeing(history_);
  memory_.empty_cache(pool);
}

// cuDNN sizes its workspaces by the result.
void CudaAllocator::cacheInfo(DeviceIndex device, size_t* largest) {
  *largest = memory_.largest(device, *largest);
}

std::vector<native::StreamSegmentSize> CudaAllocator::getExpandableSegmentSizes(
    DeviceIndex device) {
  return memory_.segment_sizes(device);
}

std::pair<size_t, size_t> CudaAllocator::getMemoryInfo(DeviceIndex device) {
  return memory_.info(device);
}

void CudaAllocator::enablePeerAccess(DeviceIndex device, DeviceIndex to) {
  memory_.enable_peer_access(device, to);
}

native::ShareableHandle CudaAllocator::shareIpcHandle(void* ptr) { return {0, ipc_.share(ptr)}; }

std::shared_ptr<void> CudaAllocator::getIpcDevPtr(std::string handle) {
  return {ipc_.open(handle), [](void* opened) {
            CudaAllocator& self = instance();
            if (!self.exiting()) self.ipc_.close(opened);
          }};
}

// --- Statistics -----------------------------------------------------------------------------

caching::DeviceStats CudaAllocator::getDeviceStats(DeviceIndex device) {
  return statistics_.of(device, pools_.had_any());
}
void CudaAllocator::resetAccumulatedStats(DeviceIndex device) {
  statistics_.reset_accumulated(device);
}
void CudaAllocator::resetPeakStats(DeviceIndex device) { statistics_.reset_peaks(device); }

// --- Private pools --------------------------------------------------------------------------

void CudaAllocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                                       std::shared_ptr<native::CUDAAllocator> allocator) {
  devices_.checked(device);
  TORCH_CHECK(allocator.get() != this, "glake: a pool's own allocator cannot be glake itself");
  pools_.retain(device, pool, allocator);
}

void CudaAllocator::releasePool(DeviceIndex device, MempoolId_t pool) {
  pools_.release(device, pool);
}

int CudaAllocator::getPoolUseCount(DeviceIndex device, MempoolId_t pool) {
  return pools_.uses(device, pool);
}

void CudaAllocator::beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                                        std::function<bool(cudaStream_t)> filter) {
  pools_.begin(device, pool, std::move(filter));
}

void CudaAllocator::endAllocateToPool(DeviceIndex device, MempoolId_t pool) {
  pools_.end(device, pool);
}

void CudaAllocator::markCaptureBegin(DeviceIndex device) { pools_.capture_begins(device); }
void CudaAllocator::markCaptureEnd(DeviceIndex device) { pools_.capture_ends(device); }

void CudaAllocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool value) {
  pools_.set_use_on_oom(device, pool, value);
}
void CudaAllocator::setNoSplit(DeviceIndex device, MempoolId_t pool) {
  pools_.set_no_split(device, pool);
}

bool CudaAllocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                             const std::unordered_set<void*>& expected) {
  return pools_.live_are(device, pool, expected);
}

std::shared_ptr<native::AllocatorState> CudaAllocator::getCheckpointState(DeviceIndex device,
                                                                          MempoolId_t pool) {
  return checkpoints_.take(device, pool);
}

native::CheckpointDelta CudaAllocator::setCheckpointPoolState(
    DeviceIndex device, std::shared_ptr<native::AllocatorState> state) {
  PoolCheckpoints::Changes changes = checkpoints_.set_back(device, state);
  native::CheckpointDelta delta;
  delta.ptrs_freed = std::move(changes.freed);
  for (void* ptr : changes.allocated) delta.dataptrs_allocd.push_back(data_ptr(ptr, device));
  return delta;
}

// --- Snapshots, history and observers -------------------------------------------------------

native::SnapshotInfo CudaAllocator::snapshot(MempoolId_t pool, bool traces) {
  return snapshots_.take(pool, traces);
}

bool CudaAllocator::isHistoryEnabled() { return history_.enabled(); }

std::shared_ptr<c10::GatheredContext> CudaAllocator::getContextForPointer(const void* ptr) {
  ForeignBlock block;
  if (foreign_.describe(ptr, &block)) return block.context;
  return history_.frames_of(library_.block_context(ptr, &history_), &history_);
}

void CudaAllocator::recordHistory(bool enabled, caching::CreateContextFn gather, size_t entries,
                                  caching::RecordContext when, bool clear,
                                  const std::vector<std::string>& skip_actions) {
  require(library_, history_.record(enabled, gather, entries, when, clear, skip_actions));
}

void CudaAllocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& what) {
  if (history_.enabled()) history_.annotate(c10::cuda::current_device(), what);
}

void CudaAllocator::pushCompileContext(std::string& context) {
  history_.push_compile_context(c10::cuda::current_device(), context);
}
void CudaAllocator::popCompileContext() {
  history_.pop_compile_context(c10::cuda::current_device());
}

void CudaAllocator::setUserMetadata(const std::string& metadata) {
  history_.set_metadata(c10::cuda::current_device(), metadata);
}
std::string CudaAllocator::getUserMetadata() {
  return history_.metadata(c10::cuda::current_device());
}
bool CudaAllocator::supportsUserMetadata() { return true; }

void CudaAllocator::annotateMemory(const void* ptr, const std::string& metadata) {
  const KnownBlock known = blocks_.known(ptr);
  history_.annotate_block(known.device, ptr, known.bytes, known.stream, metadata);
}

void CudaAllocator::attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
  observers_.attach_oom(std::move(observer));
}
void CudaAllocator::attachOomRejectionObserver(OomRejectionObserver observer) {
  observers_.attach_rejection(std::move(observer));
}

void CudaAllocator::attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) {
  require(library_, history_.track(std::move(tracker)));
}

}  // namespace glake::adapter
