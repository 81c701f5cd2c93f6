// The blocks of foreign pools, by the rules of PyTorch's own allocator. Small requests share
// segments of 2 MiB and medium ones segments of 20 MiB. The best fit of the same stream is split,
// and free neighbours are joined. This class has no lock and calls no allocator.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "base/types.h"
#include "torch/cuda/routes.h"
#include "torch/library.h"

namespace glake::adapter {

// What the pool's allocator gave in one call.
struct ForeignSegment {
  int device = 0;
  c10::MempoolId_t pool;
  char* base = nullptr;
  size_t bytes = 0;
  cudaStream_t stream = nullptr;
  bool large = false;
};

struct ForeignBlock {
  const ForeignSegment* segment = nullptr;
  size_t bytes = 0;
  size_t requested = 0;  // by its present holder
  bool live = false;
  bool awaited = false;                // it is freed, but the work recorded on it is not complete
  size_t events = 0;                   // events behind that work that are not complete yet
  std::vector<cudaStream_t> recorded;  // streams whose work must complete after its free
  std::shared_ptr<c10::GatheredContext> context;
  bool active() const { return live || awaited; }
  bool whole() const { return bytes == segment->bytes; }
};

// A request to one pool's memory, for one stream.
struct ForeignRequest {
  size_t bytes;
  int device;
  cudaStream_t stream;
  c10::MempoolId_t pool;
  bool split;  // whether a block may be split for it
  bool large() const { return bytes > kSmallLimit; }
};

class ForeignBlocks {
 public:
  using Context = std::shared_ptr<c10::GatheredContext>;
  using Stats = caching::DeviceStats;

  // The size that the pool's allocator is asked for when nothing fits.
  static size_t segment_size(const ForeignRequest& request);

  void* take(const ForeignRequest& request, const Context& context);  // null: nothing fits
  void add(const ForeignRequest& request, void* base, size_t bytes);
  // Frees a block. If work is recorded on it, events are recorded behind that work, and the block
  // is free when they complete. With `capturing` the events are recorded once no stream is
  // captured.
  void give(void* ptr, ForeignBlock& block, bool capturing);
  ForeignBlock* find(const void* ptr);  // null: not a block
  // Frees blocks whose awaited work is complete. `wait`: waits for the work.
  void settle(bool wait = false);

  // Takes out and returns the segments without a block in use, if `of(device, pool)` is true for
  // their pool.
  template <typename Of>
  std::vector<ForeignSegment> remove_idle(Of&& of);
  bool any(int device, c10::MempoolId_t pool) const;

  // For each segment it calls segment(const ForeignSegment&), and then block(void*, const
  // ForeignBlock&) for its blocks.
  template <typename OnSegment, typename OnBlock>
  void visit(int device, OnSegment&& segment, OnBlock&& block) const;

  Stats& stats(int device) { return stats_[device]; }

 private:
  // The key of a free block. A search looks at free blocks in this order.
  struct Fit {
    int device;
    c10::MempoolId_t pool;
    cudaStream_t stream;
    bool large;
    size_t bytes;
    char* where;
    bool operator<(const Fit& o) const {
      return std::tie(device, pool, stream, large, bytes, where) <
             std::tie(o.device, o.pool, o.stream, o.large, o.bytes, o.where);
    }
  };
  // Free blocks that are a part of a segment. PyTorch counts how a call changed them.
  struct Splits {
    int64_t blocks = 0, bytes = 0;
  };
  using Blocks = std::map<char*, ForeignBlock, std::less<>>;  // const pointers find them, too

  static Fit fit(char* where, const ForeignBlock& block);
  void insert_free(Blocks::iterator at, Splits* splits);
  void remove_free(Blocks::iterator at, Splits* splits);
  void free_now(Blocks::iterator at);
  void mark(char* where, ForeignBlock& block);
  void count_splits(const ForeignSegment& segment, const Splits& splits);

  Blocks blocks_;
  std::map<char*, ForeignSegment> segments_;
  std::set<Fit> free_;
  // By stream, in the order of recording.
  std::map<cudaStream_t, std::deque<std::pair<cudaEvent_t, char*>>> marks_;
  std::vector<char*> unmarked_;  // freed while a stream was captured
  std::map<int, Stats> stats_;
};

// Visits the two kinds of a statistic in which a block or segment counts. These are the kind for
// all memory and its own kind.
template <typename Act>
void for_kinds(c10::CachingAllocator::StatArray& array, bool large, Act&& act) {
  act(array[0]);
  act(array[large ? 2 : 1]);
}
inline void change(c10::CachingAllocator::StatArray& array, bool large, int64_t amount) {
  for_kinds(array, large, [&](c10::CachingAllocator::Stat& stat) {
    if (amount > 0) stat.increase(static_cast<size_t>(amount));
    if (amount < 0) stat.decrease(static_cast<size_t>(-amount));
  });
}

template <typename Of>
std::vector<ForeignSegment> ForeignBlocks::remove_idle(Of&& of) {
  std::vector<ForeignSegment> removed;
  for (auto at = segments_.begin(); at != segments_.end();) {
    const ForeignSegment& segment = at->second;
    auto block = blocks_.find(segment.base);
    if (!of(segment.device, segment.pool) || block->second.active() || !block->second.whole()) {
      ++at;
      continue;
    }
    Splits none;
    remove_free(block, &none);
    blocks_.erase(block);
    Stats& stats = stats_[segment.device];
    change(stats.segment, segment.large, -1);
    change(stats.reserved_bytes, segment.large, -static_cast<int64_t>(segment.bytes));
    ++stats.num_device_free;
    removed.push_back(segment);
    at = segments_.erase(at);
  }
  return removed;
}

template <typename OnSegment, typename OnBlock>
void ForeignBlocks::visit(int device, OnSegment&& segment, OnBlock&& block) const {
  for (const auto& [base, each] : segments_) {
    if (each.device != device) continue;
    segment(each);
    for (auto at = blocks_.find(base); at != blocks_.end() && at->second.segment == &each; ++at) {
      block(static_cast<void*>(at->first), at->second);
    }
  }
}

}  // namespace glake::adapter
