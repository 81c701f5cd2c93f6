// A thread's own freed blocks, kept whole for the next request of the same size and stream. A hit
// takes only this cache's lock, which nobody else wants.
//
// Small blocks always pass through it. A cached block cannot be split, merged or stitched. So large
// blocks pass through it only while threads contend for the device's lock, and where that costs
// nothing (LargeKeeping).
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "base/stats.h"
#include "base/tuning.h"
#include "heap/spin_lock.h"
#include "memory/block.h"

namespace glake {

class DeviceAllocator;
class Heap;

class alignas(64) ThreadCache {
 public:
  // A thread keeps only a small part of the limit.
  ThreadCache(DeviceAllocator* device, const Heap* heap, Bytes limit)
      : device_(device),
        heap_(heap),
        small_capacity_(limit / Tuning::kCacheSmall),
        large_capacity_(limit / Tuning::kCacheLarge) {}

  DeviceAllocator* device() const { return device_; }
  const Heap* heap() const { return heap_; }  // the device's own heap, whose blocks it keeps

  // Takes a request as callers make it, and how much the debug mode adds to it. Returns a live
  // block, or null.
  Block* hit(Bytes bytes, StreamHandle stream, Bytes guards) {
    const Bytes size = round_up(bytes + guards, kAlignment);
    return size <= kSmallLimit || holds_large() ? take(size, bytes, stream) : nullptr;
  }
  Block* take(Bytes size, Bytes requested, StreamHandle stream);
  // Keeps a freed block. False if it has no room: then the block stays the caller's.
  bool put(Block* block);

  // The device calls drain() and collect() under its lock. drain() hands over the blocks to free.
  // collect() adds the counts since the last call to `stats`.
  void drain(bool small_too, std::vector<Block*>& out);
  // For callers that hold the locks of all caches at once, such as glake_check().
  SpinLock& lock() { return lock_; }
  void publish_locked(Stats& stats);
  void collect(Stats& stats) {
    if (changed_.load(std::memory_order_relaxed)) publish(stats);
  }
  bool holds_large() const { return large_bytes_.load(std::memory_order_relaxed) != 0; }
  Bytes small_bytes() const { return small_bytes_.load(std::memory_order_relaxed); }
  Bytes kept_bytes() const { return small_bytes_.load() + large_bytes_.load(); }

 private:
  void publish(Stats& stats) {
    std::lock_guard<SpinLock> guard(lock_);
    publish_locked(stats);
  }
  struct Shelf {
    Bytes size = 0;
    StreamHandle stream = 0;
    int count = 0;
    Block* blocks[Tuning::kCacheDepth] = {};
    bool holds(Bytes s, StreamHandle h) const { return count != 0 && size == s && stream == h; }
  };
  // A block may be on any shelf of its group, so that few sizes have none. Returns a shelf that is
  // as wanted, the one at `home` before others, or null.
  template <typename Wanted>
  Shelf* find(size_t home, Wanted&& wanted) {
    for (size_t i = 0; i < Tuning::kCacheGroup; ++i) {
      if (Shelf& shelf = shelves_[home ^ i]; wanted(shelf)) return &shelf;
    }
    return nullptr;
  }
  static size_t shelf_of(Bytes size, StreamHandle stream) {
    uint64_t h = (size / kAlignment) * 0x9e3779b97f4a7c15ull ^ (stream * 0xff51afd7ed558ccdull);
    return (h >> 40) % Tuning::kCacheShelves;
  }

  SpinLock lock_;
  DeviceAllocator* device_;
  const Heap* heap_;
  Bytes small_capacity_, large_capacity_;
  std::atomic<Bytes> small_bytes_{0};
  std::atomic<Bytes> large_bytes_{0};
  std::atomic<bool> changed_{false};
  StatDelta small_, large_;
  Shelf shelves_[Tuning::kCacheShelves];
};

}  // namespace glake
