#include "torch/cuda/foreign.h"

#include <algorithm>

namespace glake::adapter {

ForeignPools::Pool* ForeignPools::find(int device, c10::MempoolId_t pool) {
  for (auto& each : pools_) {
    if (each->device == device && each->id == pool) return each.get();
  }
  return nullptr;
}

bool ForeignPools::retain(int device, c10::MempoolId_t pool, const Allocator& allocator) {
  if (allocator == nullptr && !any()) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  Pool* known = find(device, pool);
  if (known == nullptr) {
    if (allocator == nullptr) return false;
    pools_.push_back(std::make_unique<Pool>());
    known = pools_.back().get();
    known->device = device;
    known->id = pool;
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
  Pool* known = find(device, pool);
  if (known != nullptr) known->use_on_oom = value;
}

// Whether the work recorded on a free block is done, so that anyone may have it.
bool ForeignPools::complete(ForeignBlock& block) {
  while (!block.pending.empty()) {
    if (cudaEventQuery(block.pending.back()) != cudaSuccess) {
      (void)cudaGetLastError();  // not ready
      return false;
    }
    (void)cudaEventDestroy(block.pending.back());
    block.pending.pop_back();
  }
  return !block.held;
}

// Under mutex_.
void* ForeignPools::reuse(size_t bytes, int device, cudaStream_t stream, c10::MempoolId_t pool,
                          const std::shared_ptr<c10::GatheredContext>& context) {
  const size_t most = bytes + bytes / 8 + 512;  // a block not much larger will do
  ForeignBlock* best = nullptr;
  void* where = nullptr;
  for (auto& [ptr, block] : blocks_) {
    if (block.live || block.device != device || block.pool != pool || block.stream != stream ||
        block.bytes < bytes || block.bytes > most || !complete(block)) {
      continue;
    }
    if (best != nullptr && best->bytes <= block.bytes) continue;
    best = &block;
    where = ptr;
  }
  if (best == nullptr) return nullptr;
  best->live = true;
  best->requested = bytes;
  best->context = context;
  return where;
}

void* ForeignPools::allocate(size_t bytes, int device, cudaStream_t stream, c10::MempoolId_t pool,
                             std::shared_ptr<c10::GatheredContext> context) {
  Allocator allocator;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (void* ptr = reuse(bytes, device, stream, pool, context)) return ptr;
    allocator = find(device, pool)->allocator;
  }
  OutsideClaim claim(library_, device, bytes);
  if (!claim.granted()) return nullptr;
  OnDevice on(device);
  void* ptr = allocator->raw_alloc_with_stream(bytes, stream);
  TORCH_CHECK_WITH(OutOfMemoryError, ptr != nullptr, "CUDA out of memory. The allocator of pool (",
                   pool.first, ", ", pool.second, ") has no ", bytes, " bytes");
  claim.keep();
  ForeignBlock made;
  made.device = device;
  made.pool = pool;
  made.bytes = made.requested = bytes;
  made.stream = stream;
  made.live = true;
  made.context = std::move(context);
  std::lock_guard<std::mutex> guard(mutex_);
  blocks_[ptr] = std::move(made);
  return ptr;
}

bool ForeignPools::free(void* ptr, bool capturing, ForeignBlock* was) {
  if (!any()) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = blocks_.find(ptr);
  if (found == blocks_.end()) return false;
  ForeignBlock& block = found->second;
  if (was != nullptr) *was = block;
  if (!block.live) return true;
  block.live = false;
  block.held = capturing && !block.recorded.empty();
  if (!capturing) {
    OnDevice on(block.device);
    for (cudaStream_t stream : block.recorded) {
      cudaEvent_t event = nullptr;
      bool made = cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess;
      if (made) block.pending.push_back(event);
      if (!made || cudaEventRecord(event, stream) != cudaSuccess) {
        (void)cudaGetLastError();
        block.held = true;
      }
    }
  }
  block.recorded.clear();
  block.context.reset();
  return true;
}

bool ForeignPools::record_stream(void* ptr, cudaStream_t stream) {
  if (!any()) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = blocks_.find(ptr);
  if (found == blocks_.end()) return false;
  auto& recorded = found->second.recorded;
  if (stream != found->second.stream &&
      std::find(recorded.begin(), recorded.end(), stream) == recorded.end()) {
    recorded.push_back(stream);
  }
  return true;
}

bool ForeignPools::describe(const void* ptr, ForeignBlock* out) const {
  if (!any()) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = blocks_.find(const_cast<void*>(ptr));
  if (found == blocks_.end() || !found->second.live) return false;
  *out = found->second;
  return true;
}

size_t ForeignPools::empty(int device, c10::MempoolId_t pool, bool for_oom) {
  if (!any()) return 0;
  struct Given {
    void* ptr;
    Allocator allocator;
  };
  std::vector<Given> given;
  std::vector<std::unique_ptr<Pool>> ended;  // their allocators may go with them, unlocked
  size_t bytes = 0;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto wanted = [&](const Pool& each) {
      if (each.device != device) return false;
      if (for_oom) return each.use_on_oom || each.uses == 0;
      return pool == kNoPool ? each.uses == 0 : each.id == pool;
    };
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      Pool* owner = find(at->second.device, at->second.pool);
      if (at->second.live || !wanted(*owner)) {
        ++at;
        continue;
      }
      for (cudaEvent_t event : at->second.pending) (void)cudaEventDestroy(event);
      bytes += at->second.bytes;
      given.push_back({at->first, owner->allocator});
      at = blocks_.erase(at);
    }
    auto unused = [&](const std::unique_ptr<Pool>& each) {
      if (!wanted(*each) || each->uses > 0) return false;
      return std::none_of(blocks_.begin(), blocks_.end(), [&](const auto& entry) {
        return entry.second.device == device && entry.second.pool == each->id;
      });
    };
    for (auto& each : pools_) {
      if (unused(each)) ended.push_back(std::move(each));
    }
    pools_.erase(std::remove(pools_.begin(), pools_.end(), nullptr), pools_.end());
  }
  if (given.empty()) return 0;
  OnDevice on(device);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  for (const Given& each : given) each.allocator->raw_delete(each.ptr);
  (void)library_.claim_outside(device, -static_cast<int64_t>(bytes));
  return bytes;
}

}  // namespace glake::adapter
