// Pools whose memory another allocator gives (torch.cuda.MemPool(allocator): NCCL's, a symmetric
// heap): forwarded to it, kept for reuse by the same stream, and freed by it when the pool is
// emptied. None of this memory is ever glake's, but all of it counts against glake's limit.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "torch/cuda/routes.h"
#include "torch/library.h"

namespace glake::adapter {

struct ForeignBlock {
  int device = 0;
  c10::MempoolId_t pool;
  size_t bytes = 0;      // of the whole block
  size_t requested = 0;  // by its present holder
  cudaStream_t stream = nullptr;
  bool live = false;
  std::vector<cudaStream_t> recorded;  // streams to wait for once freed
  std::vector<cudaEvent_t> pending;    // after the free: their work, until it is complete
  bool held = false;  // freed inside a capture after other streams used it: kept until emptied
  std::shared_ptr<c10::GatheredContext> context;
  bool active() const { return live || held || !pending.empty(); }
};

class ForeignPools {
 public:
  using Allocator = std::shared_ptr<native::CUDAAllocator>;

  explicit ForeignPools(const CudaLibrary& library) : library_(library) {}

  // One more user; `allocator` may be null for a pool known already. False: not a foreign pool.
  bool retain(int device, c10::MempoolId_t pool, const Allocator& allocator);
  bool release(int device, c10::MempoolId_t pool);
  bool contains(int device, c10::MempoolId_t pool) const;
  int uses(int device, c10::MempoolId_t pool) const;  // -1: not a foreign pool
  void set_use_on_oom(int device, c10::MempoolId_t pool, bool value);

  // Null if the limit has no room for it: glake_last_error() says why.
  void* allocate(size_t bytes, int device, cudaStream_t stream, c10::MempoolId_t pool,
                 std::shared_ptr<c10::GatheredContext> context);
  // The rest: false (or null) for memory that is not foreign.
  bool free(void* ptr, bool capturing, ForeignBlock* was = nullptr);
  bool record_stream(void* ptr, cudaStream_t stream);
  bool describe(const void* ptr, ForeignBlock* out) const;

  // Gives free blocks back to their allocator after the device's work: of one pool; with kNoPool
  // of the pools without a user; with `for_oom` of those that allow it. Bytes given back.
  size_t empty(int device, c10::MempoolId_t pool, bool for_oom = false);

  template <typename Visit>
  void for_each(int device, Visit&& visit) const {
    if (!any()) return;
    std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& [ptr, block] : blocks_) {
      if (block.device == device) visit(ptr, block);
    }
  }
  bool any() const { return any_.load(std::memory_order_acquire); }

 private:
  struct Pool {
    int device = 0;
    c10::MempoolId_t id;
    Allocator allocator;
    int uses = 0;
    bool use_on_oom = false;
  };
  Pool* find(int device, c10::MempoolId_t pool);
  const Pool* find(int device, c10::MempoolId_t pool) const {
    return const_cast<ForeignPools*>(this)->find(device, pool);
  }
  bool complete(ForeignBlock& block);
  void* reuse(size_t bytes, int device, cudaStream_t stream, c10::MempoolId_t pool,
              const std::shared_ptr<c10::GatheredContext>& context);

  const CudaLibrary& library_;
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;  // never held while a foreign allocator runs
  std::vector<std::unique_ptr<Pool>> pools_;
  std::unordered_map<void*, ForeignBlock> blocks_;
};

}  // namespace glake::adapter
