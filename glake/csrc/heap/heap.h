// One heap: two arenas and the views over their granules. They are the device's own memory or a
// private pool's.
//
// The other classes of this folder each do one task on a heap (Search, Stitch, Growth, ...) or on
// all of a device's heaps (Pools, Reclaim, Report, ...). They are made where they are needed, keep
// no state, and are used under the device's locks (device.h).
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "heap/past_placements.h"
#include "heap/pins.h"
#include "heap/pool.h"
#include "heap/request.h"
#include "heap/reuse_rule.h"
#include "heap/wait_budget.h"
#include "memory/arena.h"
#include "memory/block.h"
#include "memory/block_table.h"
#include "memory/granule_pool.h"
#include "memory/reservation.h"
#include "memory/view.h"
#include "memory/view_space.h"
#include "memory/virtual_book.h"

namespace glake {

struct Device;
class ThreadCache;

// A freed block with all of its tickets. It is recorded on more streams than a ticket set has room
// for, or a graph may use it.
struct PendingFree {
  Block* block;
  std::vector<Ticket> tickets;
};

// A freed block that is kept as it is (GLAKE_POOL_NO_SPLIT).
struct WholeBlock {
  Block* block;
  Tickets tickets;
};

class Heap {
 public:
  // Makes no driver call. Without a pool it is the device's own heap.
  Heap(Device& device, std::unique_ptr<Pool> pool);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Reserves its address ranges. Throws Error. What was reserved stays for the next try.
  void reserve();
  // Gives the ranges back. A refusal stops it, and the caller may try again.
  Status release_ranges();

  // What callers do with a block of this heap. Each call takes the device's hot lock. The caller
  // has just taken `block` out of the live state.
  void free(Block* block, ThreadCache& cache);
  void record_stream(Block* block, StreamHandle stream);
  Block* find(const BlockTable& table, Address ptr);
  // The block, live or not, that holds the byte at `ptr`; null: there is none. Also says whether
  // the heap is paused.
  Block* around(const BlockTable& table, Address ptr, bool* paused);
  // Why no block starts at `ptr`, for an error message.
  std::string explain_pointer(Address ptr);
  // As free(), but the block's bytes are not reused until end_keeping().
  void keep_from_reuse(Block* block);
  void end_keeping(Block* block);
  // Orders the next work of the block's stream after the work that is enqueued on its recorded
  // streams. If the driver refuses, it returns false, and the order is not known.
  bool order_after_recorded(Block* block);
  // 1 if the block's own stream is among the recorded ones (Sharing::share, ContiguousBlocks).
  static size_t own_recorded(const Block& b) { return b.recorded.has(b.stream_id) ? 1 : 0; }
  // True if a free of the block will have to wait for its recorded streams.
  static bool frees_later(const Block& b) {
    return b.allocation == nullptr && b.recorded.size() - own_recorded(b) >= Tickets::kMax;
  }

  // The pool's id; {0, 0} for the device's own memory.
  PoolId pool_id() const { return pool != nullptr ? pool->id : PoolId{}; }
  // Whether its unused memory may go back to the driver: that of the device's own heap, or of a
  // pool without users.
  bool gives_back() const { return pool == nullptr || pool->users == 0; }
  PausedHeap* paused() const { return pool != nullptr ? pool->paused.get() : nullptr; }
  // While the heap is paused, the driver has its granules, and only frees may change the books.
  bool is_paused() const { return paused() != nullptr && paused()->state == PauseState::kPaused; }
  // True if other heaps may have its free memory before they run out.
  bool lends() const { return rule.lends() && paused() == nullptr; }
  // True if it may have theirs before it runs out. A region may not, because it could not be paused
  // then.
  bool may_borrow() const { return rule.may_borrow() && (pool == nullptr || !pool->region); }
  bool thaw() { return rule.thaw(pool != nullptr && pool->users != 0); }

  // Whether all its addresses are reserved. Before that it has no block, but may have some
  // addresses.
  bool reserved() const { return large != nullptr; }
  Arena& arena_of(Address a) { return small->contains(a) ? *small : *large; }
  Arena& home_of(const Request& r) { return r.small() ? *small : *large; }
  Granules whole_free() const { return {large->whole().count() + small->whole().count()}; }
  // How much its arenas may grow, by the limit and by a region's budget.
  Granules room() const;
  Granules budget_room() const;
  // Requests of at least so many bytes get contiguous blocks; 0: none does.
  Bytes contiguous_from() const;
  // What the debug modes put around each block.
  Bytes guard_bytes() const;
  Block* make_block(const Request& r, const Found& found, StreamHandle stream);
  // Takes the block off the live blocks of its pool, or off those that other heaps have borrowed.
  void unlist(Block* block) {
    if (pool != nullptr && pool->blocks.erase(block->ptr) == 0) --pool->lent;
  }

  Device& device;
  const int number;  // the device's
  ReuseRule rule;
  std::unique_ptr<Pool> pool;  // null: the device's own heap
  SpanPool spans;
  GranulePool granules;
  std::unique_ptr<Reservation> small_range, large_range;
  std::unique_ptr<Arena> small, large;
  std::unique_ptr<ViewSpace> view_space;
  ViewIndex views;
  VirtualBook virtuals;
  PinTable pins;
  PastPlacements history;
  WaitBudget wait_budget;
  std::vector<PendingFree> pending_frees;
  std::vector<WholeBlock> whole_blocks;
  std::deque<Block*> kept_blocks;  // those of keep_from_reuse()
  uint64_t tick = 0;     // requests that reached the heap; hits of thread caches are not counted
  Bytes most_live = 0;   // of the device, as seen by large requests that missed
  uint64_t live = 0;     // blocks in callers' hands or thread caches
  bool started = false;  // also false once close() has begun to give the ranges back
};

}  // namespace glake
