// The common part of the models of PyTorch's caching allocator: size classes, the pools of free
// blocks, best fit, splitting, coalescing, and blocks that wait for recorded streams. NativePolicy
// and ExpandablePolicy add how a pool grows and what it can give back.
//
// Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.x, read for its rules; all code here is
// our own. Known differences: there is one thread, there are no CUDA graphs or private pools,
// options have their defaults, the context itself takes no memory, and the driver never gives an
// address twice.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "policy.h"

namespace glake::replay {

constexpr uint64_t kMinBlock = 512;

constexpr uint64_t kSmallLimit = kMiB;         // the largest request of the small pool
constexpr uint64_t kSmallSegment = 2 * kMiB;   // by which the small pool grows
constexpr uint64_t kLargeSegment = 20 * kMiB;  // shared by mid-size requests
// Larger requests, and those of this size, get a segment of their own.
constexpr uint64_t kMidSizeLimit = 10 * kMiB;
constexpr uint64_t kLargeRounding = 2 * kMiB;  // of such a segment

struct Segment;
struct StitchedRange;

// A contiguous run of one segment. Neighbours are linked in address order.
struct Block {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t stream = 0;
  bool small = false;
  bool held = false;     // the caller has it
  bool mapped = true;    // false: only addresses (expandable segments)
  uint32_t pending = 0;  // recorded streams whose work is not known to be complete
  std::vector<uint32_t> used_by;
  Block* prev = nullptr;
  Block* next = nullptr;
  Segment* segment = nullptr;  // expandable segments only
  // For stitching only. `range`: the stitched range of a caller's block, which has its addresses.
  // `part_of`: the caller's block to which this piece of memory belongs.
  StitchedRange* range = nullptr;
  const Block* part_of = nullptr;

  bool idle() const { return !held && pending == 0; }
  bool whole_segment() const { return prev == nullptr && next == nullptr; }
};

// The number by which the engine knows a block.
inline uint64_t handle_of(Block* block) { return reinterpret_cast<uintptr_t>(block); }
inline Block* block_of(uint64_t handle) {
  return reinterpret_cast<Block*>(static_cast<uintptr_t>(handle));
}

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->address < b->address;
  }
};

struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    return a->address < b->address;
  }
};

struct Pool {
  void insert(Block* block) {
    idle.insert(block);
    if (by_address) places.insert(block);
  }
  void erase(Block* block) {
    idle.erase(block);
    if (by_address) places.erase(block);
  }

  bool small;
  std::set<Block*, BySize> idle = {};         // mapped and idle
  std::set<Block*, ByAddress> unmapped = {};  // expandable segments only
  bool by_address = false;                    // idle blocks are in `places` too
  std::set<Block*, ByAddress> places = {};
};

class CachingPolicy : public Policy {
 public:
  explicit CachingPolicy(const PolicyConfig& config);
  uint64_t allocate(uint64_t bytes, uint32_t stream) override;
  void release(uint64_t block) override;
  void record_stream(uint64_t block, uint32_t stream) override;
  void tick() override { ++now_; }
  uint64_t physical_bytes() const override { return physical_; }
  DriverCalls calls() const override { return calls_; }
  std::string oom_message() const override { return oom_message_; }
  Layout layout() const override;
  void check() const override;

 protected:
  using IdleIterator = std::set<Block*, BySize>::iterator;

  // Chooses among the stream's idle blocks. `first` is the smallest that is large enough.
  virtual IdleIterator choose(Pool&, IdleIterator first) { return first; }
  virtual bool should_split(const Pool& pool, uint64_t remaining) const = 0;
  virtual uint64_t rounded(uint64_t bytes) const { return round_up(bytes, kMinBlock); }
  // Makes a block of exactly `bytes` out of idle memory; null if it cannot. It is called if no idle
  // block is large enough (`attempt` 0), after growth has failed (1), and after idle memory was
  // given back and growth failed again (2).
  virtual Block* assemble(Pool&, uint32_t, uint64_t, int /*attempt*/) { return nullptr; }
  // Makes an idle block of at least `bytes` with new memory, and puts it into no pool; null if it
  // cannot.
  virtual Block* grow(Pool& pool, uint32_t stream, uint64_t bytes) = 0;
  // Gives the pool's idle memory back to the driver.
  virtual void release_idle(Pool& pool) = 0;
  // Called when nothing uses the block any more.
  virtual void make_idle(Block* block);

  Block* new_block(uint32_t stream, bool small, uint64_t address, uint64_t bytes);
  void delete_block(Block* block);
  // Cuts `block`, which is in no pool, after `front_bytes`. Returns the new block behind the cut.
  Block* split_off(Block* block, uint64_t front_bytes);
  // Joins `other` into `block`, which is in no pool, if both are idle, and both are mapped or
  // neither is.
  void merge(Pool& pool, Block* block, Block* other);
  void wait_for_stream();
  Pool& pool_of(const Block* block) { return block->small ? small_ : large_; }
  uint64_t now() const { return now_; }
  // Whether the work that was enqueued at `tick` is complete.
  bool complete(uint64_t tick) const;
  bool fits(uint64_t more) const { return more <= capacity_ - physical_; }

 private:
  struct Marker {
    uint64_t enqueued;
    Block* block;
  };

  Block* find_or_make(Pool& pool, uint32_t stream, uint64_t bytes);
  Block* find(Pool& pool, uint32_t stream, uint64_t bytes);
  Block* carve(Pool& pool, Block* block, uint64_t bytes);
  void retire(const Marker& marker);
  void process_markers();
  void synchronize_markers();
  void release_cached();
  std::string describe_oom(uint64_t bytes, uint32_t stream) const;

 protected:
  const uint64_t capacity_;
  uint64_t physical_ = 0;
  DriverCalls calls_;
  Pool small_{true};
  Pool large_{false};

 private:
  const int64_t complete_after_;
  uint64_t now_ = 0;
  uint64_t held_bytes_ = 0;
  std::deque<Block> blocks_;
  std::vector<Block*> spare_blocks_;
  std::map<uint32_t, std::deque<Marker>> markers_;  // by recorded stream
  std::string oom_message_;
};

}  // namespace glake::replay
