// Pinned host memory for torch's CUDA device, from glake's cache of it.
#pragma once

#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch/cuda/routes.h"
#include "torch/library.h"

namespace glake::adapter {

class HostAllocator final : public at::HostAllocator {
 public:
  static HostAllocator& instance();

  at::DataPtr allocate(size_t bytes) override;
  at::DeleterFnPtr raw_deleter() const override { return &deleter; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override;
  bool record_event(void* ptr, void* context, c10::Stream stream) override;
  void empty_cache() override;
  at::HostStats get_stats() override;
  void reset_accumulated_stats() override;
  void reset_peak_stats() override;
  // Memory that a graph captures stays with the graph's pool, because every replay reads and writes
  // it.
  void begin_allocate_to_pool(c10::MempoolId_t pool,
                              std::function<bool(c10::Stream)> filter) override;
  void end_allocate_to_pool(c10::MempoolId_t pool) override;
  void release_pool(c10::MempoolId_t pool) override;

 private:
  struct Block {
    size_t bytes = 0;  // as asked for
    size_t held = 0;   // which the statistics count, as torch's do
    c10::MempoolId_t pool;
    bool recorded = false;  // on any stream
  };
  struct Pool {
    int uses = 0;
    // Blocks without recorded work, for the pool's next requests.
    std::multimap<size_t, void*> free;
    std::vector<void*> kept;  // captured work uses these, so they wait for the end of the pool
  };
  static void deleter(void* ptr);
  bool give_back(void* ptr);
  void* from_pool(c10::MempoolId_t pool, size_t bytes);
  void read_reserved();
  [[noreturn]] void raise(size_t bytes);

  Routes<c10::Stream> routes_;
  std::mutex mutex_;                         // guards what follows
  std::unordered_map<void*, Block> blocks_;  // live
  std::map<c10::MempoolId_t, Pool> pools_;
  at::HostStats stats_;
  std::unordered_set<void*> seen_;  // blocks that the driver gave since the cache was last emptied
  int64_t given_ = 0, freed_ = 0;   // how many blocks the driver gave and took, at the last look
  int64_t untimed_ = 0;             // how many of given_ have no time in the statistics yet
};

}  // namespace glake::adapter
