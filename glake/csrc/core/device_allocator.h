// One device's allocator: two arenas, the views over their granules, and the order in which a
// request tries them.
//
// Two locks. `hot_` guards the books and is never held across a call that maps memory; `slow_`
// admits one thread at a time to the paths that do. A thread holds slow_ before hot_, never after.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/address_space.h"
#include "core/arena.h"
#include "core/block.h"
#include "core/contiguous.h"
#include "core/granule_pool.h"
#include "core/history.h"
#include "core/hot_lock.h"
#include "core/options.h"
#include "core/pins.h"
#include "core/stats.h"
#include "core/streams.h"
#include "core/thread_cache.h"
#include "core/view.h"

namespace glake {

// A block as another process must know it to map it.
struct SharedBlock {
  Address ptr = 0;
  Bytes bytes = 0;              // as asked for
  Bytes offset = 0;             // of the block in its first handle
  Bytes handle_bytes = 0;       // of each handle
  std::vector<Handle> handles;  // in the block's order; none of a legacy one
  bool legacy = false;
};

class DeviceAllocator {
 public:
  // Makes no driver call; start() does.
  DeviceAllocator(Driver& driver, int device, const Options& options);
  ~DeviceAllocator();
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  // Attaches the device and reserves its arenas, once. Throws Error; what was done stays for the
  // next try, or for close().
  void start();

  int device() const { return device_; }

  // A live block of at least `bytes`. Throws Error (GLAKE_OUT_OF_MEMORY, GLAKE_DRIVER_ERROR).
  Block* allocate(Bytes bytes, StreamHandle stream, ThreadCache& cache);
  // `block` has just been taken from the live state by the caller.
  void free(Block* block, ThreadCache& cache);
  void record_stream(Block* block, StreamHandle stream);
  Block* find(const Region& region, Address ptr);
  // Why no block starts at `ptr`, for an error message.
  std::string explain_pointer(Address ptr);

  // A block of one driver allocation; `kind` is GLAKE_CONTIGUOUS_*. Throws Error.
  Block* allocate_contiguous(Bytes bytes, StreamHandle stream, int kind);

  // Keeps what lies under a live block where it is. unpin() is false if that owner has no pin
  // there.
  void pin(const Block& block, Address ptr, PinOwner owner);
  bool unpin(Address ptr, PinOwner owner);
  uint64_t pins(PinOwner owner);
  // Blocks that other processes may open, by number, until they are freed.
  uint64_t share(Block& block, Address ptr, uint64_t id);
  bool open_share(uint64_t id, SharedBlock* shared);
  // Devices that reach this one's memory.
  std::vector<int> grants();

  void empty_cache();
  void enable_peer(int peer);
  std::string stats_json();
  void reset_peaks();
  void mark_step();
  void check();  // throws Error(GLAKE_INTERNAL) naming what is broken
  // Blocks that callers hold, thread caches emptied.
  uint64_t live_blocks();
  // Gives everything back. Throws Error while blocks are live or the driver refuses.
  void close();

  ThreadCache* make_cache();
  void drop_cache(ThreadCache* cache);  // its thread ends

 private:
  // Throws Error(GLAKE_DRIVER_ERROR) saying what was refused.
  void require(Status s, const char* what) const;
  void reserve_arenas();
  void grant_peers();

  using HotGuard = std::unique_lock<HotLock>;

  // What a request found: the segments it now holds, and through which addresses.
  struct Found {
    Segment* pieces = nullptr;
    View* view = nullptr;
    Address ptr = 0;
    explicit operator bool() const { return pieces != nullptr; }
  };
  struct Request {
    Bytes size;
    Bytes requested;
    StreamId stream;
    bool small() const { return size <= kSmallLimit; }
  };
  enum class Wait { kNo, kAllowed };

  Arena& arena_of(Address a) { return small_->contains(a) ? *small_ : *large_; }
  Arena& home_of(const Request& r) { return r.small() ? *small_ : *large_; }
  Block* make_block(const Request& r, const Found& found, StreamHandle stream);

  // search.cpp: finding memory that is mapped already. Under hot_.
  Found hit(const Request& r);
  bool wait_budget_spent(const Request& r);
  Found repeat(const Request& r, Address place);
  Found fit(Arena& arena, const Request& r, Wait wait);
  Found fit_between(Arena& arena, const Request& r);
  Found idle_view(const Request& r, Wait wait);
  Found run_in_view(const Request& r, Wait wait);
  Found at_home(Arena& arena, Segment* head, Address begin, const Request& r);
  Found on_view(View* view, Bytes offset, const Request& r);
  bool range_ordered(const Segment* from, Address begin, Bytes size, StreamId s, Tickets* pending);
  bool range_free(const Arena& arena, Address begin, Bytes size) const;
  bool wait_for_range(const Segment* from, Address begin, const Request& r);
  bool wait_for_stretch(const View& view, Bytes offset, const Request& r);
  bool stretch_free(const View& view, Bytes offset, Bytes size) const;
  bool stretch_ordered(const View& view, Bytes offset, const Request& r, Tickets* pending);
  bool edge_allows(const Arena& arena, Address begin, Bytes size, StreamId s) const;
  bool edge_usable(Arena& arena, uint64_t g, StreamId s) const;
  void use_edges(Segment* pieces, StreamId s, int step);
  int64_t offset_in_view(const View& view, const Request& r, Wait wait, Tickets* pending);

  // slow_path.cpp: everything that may call the driver to map memory. Under slow_.
  Found slow(const Request& r, HotGuard& hot);
  Found slow_small(const Request& r, HotGuard& hot);
  Found slow_large(const Request& r, HotGuard& hot);
  Found last_resort(const Request& r, HotGuard& hot);
  Found grow(const Request& r, HotGuard& hot);
  Found grow_small(const Request& r, HotGuard& hot);
  bool back(Arena& arena, Segment* claimed, HotGuard& hot);
  Granules room() const;
  Granules whole_free() const { return {large_->whole_free_count() + small_->whole_free_count()}; }

  // stitch.cpp: building and extending views. Under slow_.
  class Hold;
  Found stitch(const Request& r, HotGuard& hot);
  Found stitch_edges(const Request& r, HotGuard& hot);
  Granules collect(const Request& r, Granules want, Wait wait, std::vector<Run>& runs,
                   Tickets* pending);
  bool add_fresh(Granules n, std::vector<Run>& runs, Hold& hold, HotGuard& hot);
  View* longest_free_end(const Request& r, Granules need, std::vector<Run>& runs);
  Found build_view(std::vector<Run> runs, Bytes offset, const Request& r, HotGuard& hot);
  Found extend_view(const Request& r, HotGuard& hot);
  Found map_behind(View* view, Bytes offset, std::vector<Run> runs, const Request& r,
                   HotGuard& hot);
  void abandon(View* view, Granules before, const Found& found, const Request& r, uint64_t mapped,
               HotGuard& hot);
  void add_aliases(const View& view, Granules from, int step);

  // reclaim.cpp: giving memory back.
  void free_locked(Block* block);
  void give_pieces(Block* block, const Tickets& tickets);
  void drain_caches(bool small_too);
  void drain_limbo(Wait wait);
  bool settled_granule(const Arena& arena, uint64_t g) const;
  bool evict(View* view, HotGuard& hot);
  void make_view_room(Granules n, HotGuard& hot);
  void trim(HotGuard& hot);
  void settle(HotGuard& hot);
  Status synchronize(HotGuard& hot);

  void trim_all(HotGuard& hot);

  // escape.cpp: blocks of one driver allocation each.
  Block* hand_out(Chunk* chunk, const Request& r, StreamHandle stream);
  std::unique_ptr<Chunk> make_chunk(int kind, Bytes bytes, HotGuard& hot, Status* refused);
  void free_contiguous(Block* block);
  bool trim_contiguous(HotGuard& hot);
  Error no_contiguous(const Request& r, Status refused);
  Granules physical() const { return granules_.physical() + contiguous_.physical(); }

  // pins.cpp
  void require_live(const Block& block, Address ptr) const;

  // report.cpp
  Error out_of_memory(const Request& r);
  std::string broken_invariant();
  Granules used_granules(const Arena& arena) const;

  Driver& driver_;
  int device_;
  Options options_;
  Granules limit_;
  Bytes total_memory_ = 0;

  HotLock hot_;
  FairMutex slow_;
  SegmentPool segments_;
  BlockPool blocks_;
  DebtBook debts_;
  GranulePool granules_;
  std::unique_ptr<Reservation> small_range_, large_range_;
  std::unique_ptr<Arena> small_, large_;
  std::unique_ptr<ViewSpace> view_space_;
  ViewIndex views_;
  StreamClock clock_;
  ContiguousPool contiguous_;
  PinTable pins_;
  std::unordered_map<uint64_t, Block*> shares_;
  PlacementHistory history_;
  Stats stats_;
  std::vector<std::unique_ptr<ThreadCache>> caches_;
  // Freed, but recorded on more streams than a ticket set holds: with all of their tickets.
  struct Held {
    Block* block;
    std::vector<Ticket> tickets;
  };
  std::vector<Held> limbo_;
  std::vector<Block*> drained_;  // scratch of drain_caches
  uint64_t tick_ = 0;            // requests that reached the device, thread caches' hits apart
  uint64_t window_begin_ = 0;    // of the repetition in which stream waits are counted
  uint64_t window_waits_ = 0;
  Bytes most_live_ = 0;  // as large requests that missed have seen it
  uint64_t live_ = 0;    // blocks in callers' hands or thread caches
  uint64_t steps_ = 0;
  bool attached_ = false;
  bool started_ = false;      // false too once close() has begun to give the address ranges back
  bool driver_full_ = false;  // the driver refused a granule; growth is tried only as a last resort
};

}  // namespace glake
