// One device's allocator: two arenas, the views over their granules, and the order in which a
// request tries them.
//
// A private pool is a heap of its own beside the device's: another DeviceAllocator that shares what
// must be common (device_shared.h).
//
// Two locks. `hot_` guards the books and is never held across a call that maps memory; `slow_`
// admits one thread at a time to the paths that do. A thread holds slow_ before hot_, never after.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/options.h"
#include "base/stats.h"
#include "heap/checkpoint.h"
#include "heap/debug_hooks.h"
#include "heap/device_shared.h"
#include "heap/history.h"
#include "heap/pins.h"
#include "heap/regions.h"
#include "heap/snapshot.h"
#include "heap/thread_cache.h"
#include "memory/address_space.h"
#include "memory/arena.h"
#include "memory/block.h"
#include "memory/contiguous.h"
#include "memory/granule_pool.h"
#include "memory/hot_lock.h"
#include "memory/streams.h"
#include "memory/view.h"

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
  // A heap for private pools of `own`'s device.
  explicit DeviceAllocator(DeviceAllocator& own);
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
  // The block, live or not, that holds the byte at `ptr`; null: none.
  Block* around(const Region& region, Address ptr);
  // Why no block starts at `ptr`, for an error message.
  std::string explain_pointer(Address ptr);

  // Private pools; asked of the device's own heap. Throws Error.
  void retain_pool(PoolId id);
  void release_pool(PoolId id);
  int pool_users(PoolId id);
  void set_pool_flags(PoolId id, unsigned flags);
  Block* allocate_from(PoolId id, Bytes bytes, StreamHandle stream);
  Block* allocate_at(PoolId id, Address ptr, Bytes bytes, StreamHandle stream);
  void empty_pool(PoolId id);
  Checkpoint checkpoint(PoolId id);
  RestoreLog restore(PoolId id, const Checkpoint& then);

  // Pausing a pool (regions.h), asked of the device's own heap: begin, then the copies with no lock
  // held, then finish or cancel. Throws Error.
  std::vector<SavedPart> begin_pause(PoolId id);
  void finish_pause(PoolId id, std::unique_ptr<SavedBytes> saved);
  void cancel_pause(PoolId id);
  struct Resumed {
    SavedBytes* saved = nullptr;  // null: there is nothing to be written
    bool whole = false;
    std::vector<std::pair<Address, Address>> live;  // blocks, sorted
  };
  Resumed begin_resume(PoolId id);
  void end_resume(PoolId id);
  void cancel_resume(PoolId id);
  std::vector<RegionInfo> regions();

  // The pool a block of this heap belongs to; {0, 0}: the device's own memory.
  PoolId pool_id() const { return pool_ != nullptr ? pool_->id : PoolId{}; }

  void set_limit_fraction(double fraction);
  // Leaves so much of the device's memory free for others from now on, and gives idle memory back
  // until that much is free or nothing idle is left; what the driver then reports free. Throws
  // Error.
  Bytes set_headroom(Bytes bytes);
  void check_headroom(Bytes bytes) const;  // throws Error if the device cannot leave so much
  Bytes headroom() const { return driver_.headroom(device_); }
  void claim_outside(int64_t bytes);
  double limit_fraction();
  void memory_info(Bytes* free, Bytes* total);
  // What `stream` is given from here on waits for what `other` has been given. Throws Error.
  void stream_wait(StreamHandle stream, StreamHandle other);
  Bytes largest_free();
  glake_device_stats values();
  void reset_accumulated();
  // A block of one driver allocation; the kind is GLAKE_CONTIGUOUS_*. Throws Error.
  Block* allocate_contiguous(Bytes bytes, StreamHandle stream, const Asked& asked);

  // Keeps what lies under a live block where it is. unpin() is false if that owner has no pin
  // there.
  void pin(const Block& block, const CallerBlock& called, PinOwner owner);
  bool unpin(Address ptr, PinOwner owner);
  uint64_t pins(PinOwner owner);
  // Blocks that other processes may open, by number, until they are freed.
  uint64_t share(Block& block, const CallerBlock& called, uint64_t id);
  bool open_share(uint64_t id, SharedBlock* shared);
  // Devices that reach this one's memory.
  std::vector<int> grants();

  void empty_cache();
  void enable_peer(int peer);
  std::string stats_json();
  // Held, and in no segment, since the driver refused to take it back: no statistic but
  // glake.owed_bytes has it. Takes no lock.
  Granules owed() const { return Granules{deferred_.handles()} + contiguous_.owed(); }
  // With what is so of other processes' blocks, which nothing here can use again.
  Bytes owed_bytes() const { return owed().bytes() + shared_.imported; }
  // The driver refuses to take back what was opened of another process; it did after all.
  void owe_imported(Bytes memory, Bytes addresses, const std::string& said);
  void pay_imported(Bytes memory, Bytes addresses);
  void reset_peaks();
  void mark_step();
  Bytes driver_free_bytes();  // what the driver reports; 0 if it does not
  // All memory held and all blocks, at one moment.
  Snapshot snapshot();
  void check();  // throws Error(GLAKE_INTERNAL) naming what is broken
  // Blocks that callers hold, thread caches emptied.
  uint64_t live_blocks();
  // Gives everything back. Throws Error while blocks are live or the driver refuses.
  void close();

  ThreadCache* make_cache();
  void drop_cache(ThreadCache* cache);      // its thread ends
  void forget_stream(StreamHandle handle);  // a thread's own default stream, with its thread

  // The debug modes keep freed blocks from reuse for a while. Null without them.
  // One for all heaps of the device: its own may lend from a private pool.
  DebugHooks* debug_hooks() { return shared_.own->debug_.get(); }
  void set_debug(std::unique_ptr<DebugHooks> debug) { debug_ = std::move(debug); }
  // As free(), but the block's bytes stay out of use, until end_keeping().
  void keep_from_reuse(Block* block);
  void end_keeping(Block* block);
  // Orders the next work of the block's stream after what is enqueued on its recorded streams.
  // False, and nothing is known, if the driver refuses.
  bool order_after_recorded(Block* block);
  bool capturing();  // any stream seen
  // Work that no ticket names has been enqueued on memory of any block.
  void note_unticketed();
  FairMutex& mapping_lock() { return slow_; }
  // True if free() will have to keep the block for streams recorded on it.
  static bool frees_later(const Block& b) {
    return b.chunk == nullptr && b.recorded.size() - own_recorded(b) >= Tickets::kMax;
  }

 private:
  // 1 if the block's own stream is among the recorded ones (share(), hand_out()).
  static size_t own_recorded(const Block& b) { return b.recorded.has(b.stream_id) ? 1 : 0; }
  // Throws Error(GLAKE_DRIVER_ERROR) saying what was refused.
  void require(Status s, const char* what) const;
  void reserve_arenas();
  Status release_ranges();
  void mapped_ranges(std::vector<std::pair<Address, Bytes>>* ranges) const;
  void grant_peers();

  using HotGuard = std::unique_lock<HotLock>;

  // What a request found: the spans it now holds, and through which addresses.
  struct Found {
    Span* pieces = nullptr;
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
  enum class Wait { kNo, kAllowed, kSure };  // the last: where it is sure that one may

  // What sets a private pool's heap apart from the device's own.
  struct Whole {
    Block* block;
    Tickets tickets;
  };
  struct Pool {
    PoolId id;
    int users = 0;
    unsigned flags = 0;
    uint64_t released_at = 0;            // synchronisations begun when the last user left
    std::map<Address, Block*> blocks;    // live
    uint64_t lent = 0;                   // live blocks that others borrowed
    std::vector<Whole> whole;            // NO_SPLIT: freed blocks, kept as they are
    const RegionName* region = nullptr;  // null: none
    std::unique_ptr<PausedHeap> paused;  // null: in use
    bool whole_only() const { return (flags & GLAKE_POOL_NO_SPLIT) != 0; }
  };

  // Captured memory goes back to the stream it was freed on and to no other, whatever is complete:
  // a graph may be replayed at any time.
  bool ordered(StreamId s, Ticket t) const {
    return captured_ ? t.stream == s : clock_.ordered(s, t);
  }
  bool ordered(StreamId s, const Tickets& tickets) const {
    for (Ticket t : tickets) {
      if (!ordered(s, t)) return false;
    }
    return true;
  }
  // True if the stream can have what these tickets name: ordered, or after a wait.
  bool can_have(StreamId s, const Tickets& tickets) {
    for (Ticket t : tickets) {
      if (!ordered(s, t) && (captured_ || !clock_.can_wait(s, t))) return false;
    }
    return true;
  }
  bool wait_for(StreamId s, const Tickets& pending) {
    return captured_ ? pending.empty() : clock_.wait(s, pending);
  }
  const Completion* completion() const { return captured_ ? nullptr : clock_.completion(); }

  Arena& arena_of(Address a) { return small_->contains(a) ? *small_ : *large_; }
  Arena& home_of(const Request& r) { return r.small() ? *small_ : *large_; }
  Block* make_block(const Request& r, const Found& found, StreamHandle stream);

  // search.cpp: finding memory that is mapped already. Under hot_.
  Found hit(const Request& r);
  bool wait_budget_spent(const Request& r);
  Found repeat(const Request& r, Address place);
  struct Place {
    Span* head = nullptr;
    Address begin = 0;
  };
  Place ready_place(Arena& arena, const Request& r, bool ask, Span** waits);
  Found fit(Arena& arena, const Request& r, Wait wait);
  Found fit_between(Arena& arena, const Request& r);
  Found idle_view(const Request& r, Wait wait);
  Found run_in_view(const Request& r, Wait wait);
  Found at_home(Arena& arena, Span* head, Address begin, const Request& r);
  Found on_view(View* view, Bytes offset, const Request& r);
  bool range_ordered(const Span* from, Address begin, Bytes size, StreamId s, Tickets* pending);
  bool known_ordered(const Span* from, Address begin, Bytes size, StreamId s);
  void ask_all(const Request& r);
  bool range_free(const Arena& arena, Address begin, Bytes size) const;
  bool wait_for_range(const Span* from, Address begin, const Request& r);
  bool wait_for_stretch(const View& view, Bytes offset, const Request& r);
  bool stretch_free(const View& view, Bytes offset, Bytes size) const;
  bool stretch_ordered(const View& view, Bytes offset, const Request& r, Tickets* pending);
  bool edge_allows(const Arena& arena, Address begin, Bytes size, StreamId s) const;
  bool edge_usable(Arena& arena, uint64_t g, StreamId s) const;
  void use_edges(Span* pieces, StreamId s, int step);
  int64_t offset_in_view(const View& view, const Request& r, Wait wait, Tickets* pending);

  // slow_path.cpp: everything that may call the driver to map memory. Under slow_.
  Request request(Bytes bytes, StreamHandle stream);
  Block* allocate_slowly(Request r, StreamHandle stream, HotGuard& hot);
  Found slow(const Request& r, HotGuard& hot);
  Found slow_sized(const Request& r, HotGuard& hot) {
    return r.small() ? slow_small(r, hot) : slow_large(r, hot);
  }
  Found slow_small(const Request& r, HotGuard& hot);
  Found slow_large(const Request& r, HotGuard& hot);
  Found last_resort(const Request& r, HotGuard& hot);
  Found grow(const Request& r, HotGuard& hot);
  Found grow_small(const Request& r, HotGuard& hot);
  bool back(Arena& arena, Span* claimed, HotGuard& hot);
  void note_refusal();
  Granules driver_has();
  void forget_refusals(Granules given);
  Granules kept_mapped();
  void count_backed(const Arena& arena, Address begin, Granules n);
  void keep_backed(Arena& arena, Span* claimed, Granules first);
  Granules under_limit() const;
  Granules device_room() const;
  Granules budget_room() const;
  Granules room() const { return std::min(device_room(), budget_room()); }
  Granules above_limit() const;
  Granules whole_free() const { return {large_->whole_free_count() + small_->whole_free_count()}; }

  // stitch.cpp: building views. Under slow_.
  class TakenGranules;
  Found stitch(const Request& r, HotGuard& hot);
  Found stitch_edges(const Request& r, HotGuard& hot, bool grows = true);
  bool add_free(Granules n, HotGuard& hot);
  bool edge_ready(Arena& arena, uint64_t g, Address a, Bytes bytes, const Request& r);
  struct Edge {  // the free end, or start, of a granule of which the rest is held
    Run run;
    Bytes bytes = 0;
  };
  std::array<Edge, 2> widest_heads(const Request& r);
  void each_tail(const Request& r, const Edge& head, const std::function<void(const Edge&)>& visit);
  Granules collect(const Request& r, Granules want, Wait wait, std::vector<Run>& runs,
                   Tickets* pending);
  bool add_fresh(Granules n, std::vector<Run>& runs, TakenGranules& taken, HotGuard& hot);
  Found build_view(std::vector<Run> runs, Bytes offset, const Request& r, HotGuard& hot);
  Found map_behind(View* view, Bytes offset, std::vector<Run> runs, const Request& r,
                   HotGuard& hot);
  void abandon(View* view, Granules before, const Found& found, const Request& r, uint64_t mapped,
               HotGuard& hot);
  void add_aliases(const std::vector<Run>& runs, int step);

  // extend.cpp: mapping behind what a view has. Under slow_.
  struct Reuse {
    View* view = nullptr;
    Granules at, length;  // of the free stretch behind which the rest is mapped
    Granules next;        // the longest shorter request for which there are more places
  };
  struct Extension {
    Reuse reuse;
    std::vector<Run> behind;  // granules to be mapped behind it
    Granules fresh;           // and new ones
    Granules reach;           // what the place serves at most
  };
  Extension plan_extension(const Request& r, Granules growth);
  Granules most_extended(const Request& r, Granules growth, Granules least);
  Found extend_view(const Request& r, HotGuard& hot);
  Reuse most_reuse(const Request& r, Granules need);
  Granules longest_reuse(const Request& r);
  bool idle(const View& view) const;
  bool ask_idle(const View& view);
  bool unmap_behind(View* view, const std::vector<Run>& runs, HotGuard& hot);

  // reclaim.cpp: giving memory back.
  void free_locked(Block* block);
  void end_share(Block* block);
  void keep_waiting(Block* block);
  void release_pieces(Block* block, const Tickets& tickets);
  void give_pieces(Block* block, const Tickets& tickets);
  void drain_caches(bool small_too);
  void drain_pending(Wait wait);
  uint64_t settled_run(const Arena& arena, uint64_t g, uint64_t most, const Span*& at);
  Granules give_granules(Arena& arena, uint64_t g, Granules n, HotGuard& hot);
  bool evict(View* view, HotGuard& hot);
  void make_view_room(Granules n, HotGuard& hot);
  Granules trim(Granules want, HotGuard& hot);
  void trim_all(bool synced, HotGuard& hot);
  void trim_idle(bool synced, HotGuard& hot);
  enum class Use { kNoMore, kAgain };
  void settle(HotGuard& hot, Use use = Use::kNoMore);
  void give_back(HotGuard& hot);
  void require_all_given();
  Status synchronize(HotGuard& hot);
  Status wait_for_device(HotGuard& hot);
  bool wait_for_work(HotGuard& hot);
  void give_back_idle(HotGuard& hot);
  void trim_heaps(bool synced, HotGuard& hot);

  // pools.cpp: private pools, and what the device's heaps do for each other.
  DeviceAllocator* find_pool(PoolId id);
  DeviceAllocator& open_pool(PoolId id);
  DeviceAllocator& need_pool(PoolId id);
  void start_pool(HotGuard& hot);
  Request request_from(DeviceAllocator& pool, Bytes bytes, StreamHandle stream);
  Block* quick(const Request& r, StreamHandle stream);
  Block* take_whole(const Request& r, StreamHandle stream);
  void free_private(Block* block);
  void give_private(Block* block, const Tickets& tickets);
  void drain_whole();
  bool idle() const { return pool_ != nullptr && pool_->users == 0; }
  bool thaw();
  void end_pools();
  std::vector<DeviceAllocator*> heaps();
  bool reclaim_elsewhere(const Request& r, HotGuard& hot);
  Granules shrink(Granules want, HotGuard& hot);
  Block* borrow(const Request& r, StreamHandle stream, HotGuard& hot);
  void abandon_pools();
  void close_pools(Status* s);
  std::string pools_text();

  // regions.cpp
  PausedHeap* paused() const { return pool_ != nullptr ? pool_->paused.get() : nullptr; }
  std::string region_text() const;
  void require_resumed() const;
  void require_pausable();
  void list_homes();
  std::vector<SavedPart> bytes_to_save();
  bool unmap_homes();
  Status map_homes();
  Status grant(Address at, uint64_t granules);
  void give_homes(HotGuard& hot);
  void tell_paused(bool paused);
  void drop_freed();
  void trim_paused(bool synced, HotGuard& hot);
  void map_again(HotGuard& hot);
  Error cannot_resume(const std::string& said, Granules needs, Granules lacks);
  Granules paused_granules();

  // checkpoint.cpp
  bool free_at(Address ptr, Bytes size);
  Found take_at(Address ptr, const Request& r, bool any_order);
  std::vector<Block*> lift_all();
  void put_back(const std::vector<Block*>& lifted);
  std::vector<Found> take_all(const Checkpoint& then);
  RestoreLog restore_here(const Checkpoint& then);

  // escape.cpp: blocks of one driver allocation each.
  Block* hand_out(Chunk* chunk, const Request& r, StreamHandle stream);
  std::unique_ptr<Chunk> make_chunk(int kind, Bytes bytes, HotGuard& hot, Status* refused);
  void free_contiguous(Block* block);
  bool trim_contiguous(HotGuard& hot);
  Error no_contiguous(const Request& r, const Asked& asked, Status refused, HotGuard& hot);
  Granules chunk_room() const;
  Granules chunks_above_limit() const;
  Granules physical() const { return granules_.physical() + contiguous_.physical(); }

  // pins.cpp
  void require_live(const Block& block, Address begin) const;
  uint64_t pinned_granules();

  // largest_fit.cpp
  struct Usable {
    Granules whole{0};           // from anywhere
    Bytes large = 0, small = 0;  // the longest stretch at home, for blocks of that class
    Bytes edges = 0;             // at the ends of granules that are held
    Bytes grown = 0;             // before a place to grow, with what can grow there
  };
  struct Growth {
    Granules limit, driver, now;
    Granules withheld;  // that the driver reports free and has refused
    Granules above;     // held above a limit that was lowered
    Granules kept;      // that the driver reports free and headroom leaves to others
    std::string said;   // by the driver when it refused; empty: nothing
  };
  Usable usable(const Request& r, Granules growth);
  Bytes longest_stretch(const Arena& arena, const Request& r);
  Bytes longest_in_views(const Request& r);
  Bytes start_had(const Request& r, const Arena& arena, uint64_t g, Bytes prefix);
  Bytes fits_here(const Request& r, Granules growth);
  Bytes largest_fit(const Request& r, Granules growth);
  Bytes largest_chunk(int kind, StreamId stream, Granules growth) const;
  Granules kept_of(Bytes driver_free) const;
  Growth growth(Bytes* driver_free);
  Growth chunk_growth(int kind, Granules below, Bytes* driver_free, HotGuard& hot);
  Bytes callers_fit(const Request& r, const Asked& asked, const Growth& chunks);

  // out_of_memory.cpp
  std::string stitch_text(Granules idle) const;
  std::string driver_text(Bytes driver_free, const Growth& growth) const;
  std::string idle_text(Granules mine);
  Error out_of_memory(const Request& r, const Asked& asked, HotGuard& hot);
  Granules missing(const Request& r, const Asked& asked, Granules growth);
  std::string advice(Bytes needed, Granules missing, const Growth& growth, Granules idle) const;
  std::string raise_text(Bytes by, const char* then) const;
  // report.cpp
  std::string broken_invariant(Bytes* busy_bytes);
  void note_inactive();
  Granules used_granules(const Arena& arena) const;

  std::unique_ptr<DeviceShared> owned_;  // by the device's own heap
  DeviceShared& shared_;
  // snapshot.cpp
  using SpanOwners = std::unordered_map<const Span*, const Block*>;
  void walk(const SpanOwners& owners, Snapshot* all) const;
  void walk_contiguous(Snapshot* all) const;
  void show_stitched(const Span* pieces, Address ptr, Bytes size, bool out);
  static BlockShot shot_of(const Block& b, bool waits);

  Driver& driver_;
  int device_;
  Options options_;
  Granules& limit_;
  Bytes& total_memory_;

  HotLock& hot_;
  FairMutex& slow_;
  SpanPool spans_;
  BlockPool& blocks_;
  DeferredReleases& deferred_;
  GranulePool granules_;
  std::unique_ptr<Reservation> small_range_, large_range_;
  std::unique_ptr<Arena> small_, large_;
  std::unique_ptr<ViewSpace> view_space_;
  ViewIndex views_;
  StreamClock& clock_;
  ContiguousPool& contiguous_;
  PinTable pins_;
  PlacementHistory history_;
  Stats& stats_;
  std::vector<std::unique_ptr<ThreadCache>> caches_;
  // Freed, but recorded on more streams than a ticket set holds: with all of their tickets.
  struct PendingFree {
    Block* block;
    std::vector<Ticket> tickets;
  };
  std::vector<PendingFree> pending_frees_;
  std::deque<Block*> kept_blocks_;  // by keep_from_reuse()
  std::unique_ptr<DebugHooks> debug_;
  std::vector<Block*> drained_;  // scratch of drain_caches
  uint64_t tick_ = 0;            // requests that reached the device, thread caches' hits apart
  uint64_t window_begin_ = 0;    // of the repetition in which stream waits are counted
  uint64_t window_waits_ = 0;
  Bytes most_live_ = 0;  // as large requests that missed have seen it
  uint64_t replaced_seen_ = 0;
  uint64_t live_ = 0;  // blocks in callers' hands or thread caches
  uint64_t steps_ = 0;
  std::unique_ptr<Pool> pool_;  // null: the device's own heap
  bool captured_ = false;       // a graph may use the pool's memory: it stays as it is
  bool& attached_;
  bool started_ = false;  // false too once close() has begun to give the address ranges back
  bool& driver_full_;     // the driver refused a granule; growth is tried only as a last resort
};

}  // namespace glake
