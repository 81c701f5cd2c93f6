#include "torch/cuda/foreign.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <algorithm>

#include "torch/cuda/on_device.h"
#include "torch/cuda/outside_claim.h"
#include "torch/cuda/own_stats.h"

namespace glake::adapter {

ForeignPools::Pool* ForeignPools::find(int device, c10::MempoolId_t pool) {
  auto found = pools_.find({device, pool});
  return found == pools_.end() ? nullptr : &found->second;
}

const ForeignPools::Pool* ForeignPools::find(int device, c10::MempoolId_t pool) const {
  auto found = pools_.find({device, pool});
  return found == pools_.end() ? nullptr : &found->second;
}

bool ForeignPools::retain(int device, c10::MempoolId_t pool, const Allocator& allocator) {
  if (allocator == nullptr && !legacy_ && !any()) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  Pool* known = find(device, pool);
  if (known == nullptr) {
    if (allocator == nullptr && !legacy_) return false;
    known = &pools_[{device, pool}];
    known->allocator = allocator;
    any_.store(true);
  }
  TORCH_CHECK(allocator == nullptr || allocator == known->allocator, "glake: pool (", pool.first,
              ", ", pool.second, ") has another allocator already");
  ++known->uses;
  return true;
}

bool ForeignPools::release(int device, c10::MempoolId_t pool) {
  if (!any()) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  Pool* known = find(device, pool);
  if (known == nullptr) return false;
  TORCH_CHECK(known->uses > 0, "glake: pool (", pool.first, ", ", pool.second, ") has no user");
  --known->uses;
  return true;
}

bool ForeignPools::contains(int device, c10::MempoolId_t pool) const {
  if (!any() || pool == kNoPool) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  return find(device, pool) != nullptr;
}

int ForeignPools::uses(int device, c10::MempoolId_t pool) const {
  if (!any()) return -1;
  std::lock_guard<std::mutex> guard(mutex_);
  const Pool* known = find(device, pool);
  return known != nullptr ? known->uses : -1;
}

void ForeignPools::set_use_on_oom(int device, c10::MempoolId_t pool, bool value) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (Pool* known = find(device, pool)) known->use_on_oom = value;
}

void ForeignPools::set_no_split(int device, c10::MempoolId_t pool) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (Pool* known = find(device, pool)) known->no_split = true;
}

void* ForeignPools::allocate(size_t bytes, int device, cudaStream_t stream, c10::MempoolId_t pool,
                             bool capturing, const ForeignBlocks::Context& context) {
  ForeignRequest request{bytes, device, stream, pool, true};
  Allocator allocator;
  Observed observed(*this, device);
  {
    std::lock_guard<std::mutex> guard(mutex_);
    const Pool* known = find(device, pool);
    request.split = !known->no_split;
    if (!capturing) blocks_.settle();
    if (void* ptr = blocks_.take(request, context)) return ptr;
    allocator = known->allocator;
  }
  const size_t size = ForeignBlocks::segment_size(request);
  OutsideClaim claim(library_, device, size);
  if (!claim.granted()) return nullptr;
  void* base = obtain(allocator, size, device, stream);
  if (base == nullptr && !capturing && empty(device, pool) > 0) {
    base = obtain(allocator, size, device, stream);
  }
  // The other allocator may be able to use what is idle here.
  if (base == nullptr && !capturing) {
    (void)library_.empty_cache(device);
    base = obtain(allocator, size, device, stream);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, base != nullptr, "CUDA out of memory. The ",
                   allocator == nullptr ? "driver" : "allocator", " of pool (", pool.first, ", ",
                   pool.second, ") has no ", size, " bytes in one piece");
  claim.keep();
  std::lock_guard<std::mutex> guard(mutex_);
  blocks_.add(request, base, size);
  return blocks_.take(request, context);
}

void* ForeignPools::obtain(const Allocator& allocator, size_t bytes, int device,
                           cudaStream_t stream) {
  OnDevice on(device);
  if (allocator != nullptr) return allocator->raw_alloc_with_stream(bytes, stream);
  c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  void* base = nullptr;
  const cudaError_t status = cudaMalloc(&base, bytes);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  C10_CUDA_CHECK(status);
  return base;
}

void ForeignPools::give(const Allocator& allocator, void* base) {
  if (allocator != nullptr) {
    allocator->raw_delete(base);
  } else {
    C10_CUDA_CHECK(cudaFree(base));
  }
}

bool ForeignPools::free(void* ptr, int device, bool capturing) {
  if (!any()) return false;
  Observed observed(*this, device);
  std::lock_guard<std::mutex> guard(mutex_);
  ForeignBlock* block = blocks_.find(ptr);
  if (block == nullptr || !block->live) return false;
  blocks_.give(ptr, *block, capturing);
  return true;
}

bool ForeignPools::record_stream(void* ptr, cudaStream_t stream) {
  if (!any()) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  ForeignBlock* block = blocks_.find(ptr);
  if (block == nullptr) return false;
  auto& recorded = block->recorded;
  if (stream != block->segment->stream &&
      std::find(recorded.begin(), recorded.end(), stream) == recorded.end()) {
    recorded.push_back(stream);
  }
  return true;
}

bool ForeignPools::describe(const void* ptr, ForeignBlock* out) {
  if (!any()) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  const ForeignBlock* block = blocks_.find(ptr);
  if (block == nullptr || !block->live) return false;
  *out = *block;
  return true;
}

void* ForeignPools::lend(size_t bytes, int device, cudaStream_t stream, bool capturing,
                         const ForeignBlocks::Context& context) {
  if (!any()) return nullptr;
  Observed observed(*this, device);
  std::lock_guard<std::mutex> guard(mutex_);
  if (!capturing) blocks_.settle();
  for (const auto& [key, pool] : pools_) {
    if (key.first != device || !pool.use_on_oom) continue;
    const ForeignRequest request{bytes, device, stream, key.second, !pool.no_split};
    if (void* ptr = blocks_.take(request, context)) return ptr;
  }
  return nullptr;
}

size_t ForeignPools::empty(int device, c10::MempoolId_t pool) {
  if (!any()) return 0;
  struct Given {
    void* ptr;
    Allocator allocator;
  };
  std::vector<Given> given;
  std::vector<Allocator> ended;  // destroyed after the lock is released
  size_t bytes = 0;
  Observed observed(*this, device);
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto wanted = [&](int of, c10::MempoolId_t id) {
      const Pool& each = pools_.at({of, id});
      if (of != device) return false;
      return pool == kNoPool ? each.uses == 0 : id == pool;
    };
    blocks_.settle(true);
    for (const ForeignSegment& segment : blocks_.remove_idle(wanted)) {
      given.push_back({segment.base, pools_.at({device, segment.pool}).allocator});
      bytes += segment.bytes;
    }
    for (auto at = pools_.begin(); at != pools_.end();) {
      auto [of, id] = at->first;
      if (!wanted(of, id) || at->second.uses > 0 || blocks_.any(of, id)) {
        ++at;
        continue;
      }
      ended.push_back(std::move(at->second.allocator));
      at = pools_.erase(at);
    }
  }
  if (given.empty()) return 0;
  OnDevice on(device);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  for (const Given& each : given) give(each.allocator, each.ptr);
  (void)library_.claim_outside(device, -static_cast<int64_t>(bytes));
  return bytes;
}

// --- Statistics -----------------------------------------------------------------------------

namespace {
using Stats = caching::DeviceStats;
// The statistics in which both kinds of memory count.
constexpr c10::CachingAllocator::StatArray Stats::* kSummed[] = {
    &Stats::allocation,      &Stats::segment,
    &Stats::active,          &Stats::inactive_split,
    &Stats::allocated_bytes, &Stats::reserved_bytes,
    &Stats::active_bytes,    &Stats::inactive_split_bytes,
    &Stats::requested_bytes};
}  // namespace

// It is called before and after each change of foreign memory. From one change to the next, only
// glake's own memory changes. So the highest sum in that time is glake's peak, if it is a new one,
// plus the foreign memory. The sum right after a change may be higher still.
void ForeignPools::observe(const Stats& own, int device, bool before) {
  const Stats& foreign = blocks_.stats(device);
  Peaks& peaks = peaks_[device];
  for (size_t i = 0; i < std::size(kSummed); ++i) {
    for (size_t kind = 0; kind < 3; ++kind) {
      const auto& mine = (own.*kSummed[i])[kind];
      const int64_t theirs = (foreign.*kSummed[i])[kind].current;
      Peak& peak = peaks[i][kind];
      if (before && mine.peak > peak.own) peak.sum = std::max(peak.sum, mine.peak + theirs);
      if (before) peak.own = mine.peak;
      peak.sum = std::max(peak.sum, mine.current + theirs);
    }
  }
}

ForeignPools::Observed::Observed(ForeignPools& pools, int device)
    : pools_(pools), device_(device), own_(own_stats(pools.library_, device)) {
  std::lock_guard<std::mutex> guard(pools_.mutex_);
  pools_.observe(own_, device_, true);
}
ForeignPools::Observed::~Observed() {
  std::lock_guard<std::mutex> guard(pools_.mutex_);
  pools_.observe(own_, device_, false);
}

void ForeignPools::add_to(Stats* stats, int device) {
  if (!any()) return;
  std::lock_guard<std::mutex> guard(mutex_);
  observe(*stats, device, true);
  const Stats& foreign = blocks_.stats(device);
  const Peaks& peaks = peaks_[device];
  for (size_t i = 0; i < std::size(kSummed); ++i) {
    for (size_t kind = 0; kind < 3; ++kind) {
      auto& to = (stats->*kSummed[i])[kind];
      const auto& from = (foreign.*kSummed[i])[kind];
      to.current += from.current;
      to.allocated += from.allocated;
      to.freed += from.freed;
      to.peak = std::max(to.peak, peaks[i][kind].sum);
    }
  }
  stats->num_device_alloc += foreign.num_device_alloc;
  stats->num_device_free += foreign.num_device_free;
}

// Called after the reset of glake's own peaks.
void ForeignPools::reset_peaks(int device) {
  if (!any()) return;
  Stats own = own_stats(library_, device);
  std::lock_guard<std::mutex> guard(mutex_);
  peaks_[device] = {};
  observe(own, device, true);
}

void ForeignPools::reset_accumulated(int device) {
  if (!any()) return;
  std::lock_guard<std::mutex> guard(mutex_);
  Stats& foreign = blocks_.stats(device);
  for (auto each : kSummed) {
    for (auto& stat : foreign.*each) stat.reset_accumulated();
  }
  foreign.num_device_alloc = foreign.num_device_free = 0;
}

}  // namespace glake::adapter
