// Pools with memory of another allocator (torch.cuda.MemPool(allocator): NCCL's, a symmetric heap).
// Blocks share that allocator's segments, as in PyTorch's own allocator. The segments go back when
// the pool is emptied. None of this memory is glake's, but all of it counts against glake's limit.
// With the option private_pools=legacy every private pool is a foreign one, and its allocator is
// the driver's cudaMalloc. Legacy IPC and NCCL's graph registration need that.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "torch/cuda/foreign_blocks.h"

namespace glake::adapter {

class ForeignPools {
 public:
  using Allocator = std::shared_ptr<native::CUDAAllocator>;

  explicit ForeignPools(const CudaLibrary& library) : library_(library) {}

  // From now on every new private pool has memory of cudaMalloc.
  void set_legacy() { legacy_ = true; }
  // Adds a user. `allocator` may be null for a pool that is known already. False: it is not a
  // foreign pool.
  bool retain(int device, c10::MempoolId_t pool, const Allocator& allocator);
  bool release(int device, c10::MempoolId_t pool);
  bool contains(int device, c10::MempoolId_t pool) const;
  int uses(int device, c10::MempoolId_t pool) const;  // -1: not a foreign pool
  void set_use_on_oom(int device, c10::MempoolId_t pool, bool value);
  void set_no_split(int device, c10::MempoolId_t pool);

  // Null if the limit has no room for it. Then glake_last_error() says why.
  void* allocate(size_t bytes, int device, cudaStream_t stream, c10::MempoolId_t pool,
                 bool capturing, const ForeignBlocks::Context& context);
  // A free block of a pool that was set to use_on_oom, for a request of no pool. Null: none fits.
  // By PyTorch's rules the pool's allocator is not asked, and the pool has the block again when it
  // is freed.
  void* lend(size_t bytes, int device, cudaStream_t stream, bool capturing,
             const ForeignBlocks::Context& context);
  // The next three return false for memory that is not foreign.
  bool free(void* ptr, int device, bool capturing);
  bool record_stream(void* ptr, cudaStream_t stream);
  bool describe(const void* ptr, ForeignBlock* out);

  // Waits for the device's work, and gives the idle segments of `pool` back to its allocator.
  // kNoPool stands for all pools without a user. Returns how many bytes were given back.
  size_t empty(int device, c10::MempoolId_t pool);

  template <typename OnSegment, typename OnBlock>
  void visit(int device, OnSegment&& segment, OnBlock&& block) const {
    if (!any()) return;
    std::lock_guard<std::mutex> guard(mutex_);
    blocks_.visit(device, segment, block);
  }
  bool any() const { return any_.load(std::memory_order_acquire); }

  // Adds this memory to glake's own statistics. Peaks become those of the sum.
  void add_to(caching::DeviceStats* stats, int device);
  void reset_peaks(int device);
  void reset_accumulated(int device);

 private:
  struct Pool {
    Allocator allocator;  // null: cudaMalloc
    int uses = 0;
    bool use_on_oom = false, no_split = false;
  };
  using Key = std::pair<int, c10::MempoolId_t>;
  Pool* find(int device, c10::MempoolId_t pool);
  const Pool* find(int device, c10::MempoolId_t pool) const;

  // One lives during each change of foreign memory. It looks at the statistics before and after the
  // change, because a peak is the highest sum of glake's own and foreign memory.
  class Observed {
   public:
    Observed(ForeignPools& pools, int device);
    ~Observed();
    Observed(const Observed&) = delete;
    Observed& operator=(const Observed&) = delete;

   private:
    ForeignPools& pools_;
    int device_;
    caching::DeviceStats own_;
  };
  struct Peak {
    int64_t sum = 0, own = 0;
  };
  using Peaks = std::array<std::array<Peak, 3>, 9>;  // of each statistic, by kind of block

  // Null: the allocator has no more.
  static void* obtain(const Allocator& allocator, size_t bytes, int device, cudaStream_t stream);
  static void give(const Allocator& allocator, void* base);
  void observe(const caching::DeviceStats& own, int device, bool before);

  const CudaLibrary& library_;
  std::atomic<bool> any_{false};
  bool legacy_ = false;
  mutable std::mutex mutex_;  // never held while a foreign allocator runs
  std::map<Key, Pool> pools_;
  ForeignBlocks blocks_;
  std::map<int, Peaks> peaks_;
};

}  // namespace glake::adapter
