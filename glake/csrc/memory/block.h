// What a caller holds.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/types.h"
#include "driver/driver.h"
#include "memory/arena.h"
#include "memory/slabs.h"
#include "memory/stream_set.h"
#include "memory/tickets.h"

namespace glake {

class Heap;
struct Allocation;
struct View;

enum class BlockState : uint8_t {
  kIdle,  // in the pool of block records
  kLive,  // held by a caller
  kPage,  // behind pages of a virtual range; no caller has its address, and glake_free() refuses it
  kCached,  // freed, and kept whole by a thread's cache for the same size and stream
};

// A hit writes to the middle third alone. With this size and alignment, the cache line of the
// middle third has nothing of other records. So threads that use neighbouring records do not take
// each other's lines.
struct alignas(32) Block {
  StreamHandle stream = 0;
  Heap* heap = nullptr;
  StreamSet recorded;      // other streams that use it
  Span* pieces = nullptr;  // the spans that it occupies, in the view's order

  std::atomic<BlockState> state{BlockState::kIdle};
  bool small_pool = false;  // it lies in the small arena, and counts in PyTorch's small pool
  StreamId stream_id = 0;
  // Threads that look up another block of the same cell see it change (BlockTable::peek).
  std::atomic<Address> ptr{0};
  Bytes size = 0;       // rounded up to 512
  Bytes requested = 0;  // as the caller asked

  View* view = nullptr;              // the view that reaches it; null: it is at home in an arena
  Allocation* allocation = nullptr;  // its own, if it is a block of the contiguous pool
  uint64_t share = 0;                // the number by which other processes open it; 0: none
  Block* cell_next = nullptr;        // other blocks that start in the same pointer-map cell
  void* data() const { return reinterpret_cast<void*>(ptr.load(std::memory_order_relaxed)); }
  bool small() const { return size <= kSmallLimit; }
};
static_assert(sizeof(Block) == 96, "three thirds of 32 bytes");

// A block as its caller sees it. With guards (debug/debug_device.h) the caller's first byte is not
// the block's.
struct CallerBlock {
  Address ptr;    // the caller's
  Bytes bytes;    // as the caller asked
  Address begin;  // of the block itself
};

// What glake has at an address, which may lie inside a block.
struct Owned {
  int device = -1;     // -1: the address is not in glake's memory
  Address begin = 0;   // of the live block there, as its caller sees it
  Bytes bytes = 0;     // as its caller asked; 0: no live block is there
  bool pages = false;  // it lies in a virtual range; begin and bytes are of the backed pages there
  std::string paused;  // why its bytes are not there, and what to do; empty: they are there
};

}  // namespace glake
