// From an address to the block that starts there: two shifts and two loads, no hash and no lock.
#pragma once

#include <atomic>
#include <cstddef>

#include "core/block.h"
#include "types.h"

namespace glake {

// A reserved range, and for each of its slots the blocks that start in it. A slot is 512 B where
// small blocks live and 1 MiB elsewhere, where almost always at most one block starts.
class Region {
 public:
  Region(Address base, Bytes size, Bytes slot, DeviceAllocator* device);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  Address base() const { return base_; }
  Bytes size() const { return size_; }
  DeviceAllocator* device() const { return device_; }

  void insert(Block* block);  // under the device's lock
  void erase(Block* block);   // under the device's lock
  // The block at exactly `ptr` if it leads its slot, which needs no lock; else null: ask find().
  Block* peek(Address ptr) const {
    Block* b = slot(ptr).load(std::memory_order_acquire);
    return b != nullptr && b->ptr.load(std::memory_order_relaxed) == ptr ? b : nullptr;
  }
  Block* find(Address ptr) const;  // under the device's lock
  // The block that holds the byte at `ptr`, and begins at `low` or later; null: none. Under the
  // device's lock; in time linear in how far into the block that is.
  Block* around(Address ptr, Address low) const;

 private:
  std::atomic<Block*>& slot(Address ptr) const { return slots_[(ptr - base_) >> shift_]; }

  Address base_;
  Bytes size_;
  int shift_;
  DeviceAllocator* device_;
  std::atomic<Block*>* slots_;
  size_t mapped_;
};

// Process-wide: every device's regions, by address. Regions are 1 GiB aligned and whole GiB long.
class PointerMap {
 public:
  static void add(Region* region);
  static void remove(Region* region);
  static Region* find(Address ptr) {
    uint64_t page = ptr / kRegionAlign;
    return page < kPages ? pages_[page].load(std::memory_order_acquire) : nullptr;
  }

 private:
  static constexpr uint64_t kPages = uint64_t{1} << 19;  // 49-bit addresses
  static std::atomic<Region*> pages_[kPages];
};

}  // namespace glake
