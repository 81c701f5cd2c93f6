// Contiguous blocks: one driver allocation each, for others that must see memory whole. Freed ones
// are kept and reused by size. Their addresses lie outside the ranges of arenas and views, which
// the pointer map knows. So pointers that are unknown to the pointer map are looked up in an index
// here.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/types.h"
#include "driver/driver.h"
#include "memory/block.h"
#include "memory/stream_clock.h"
#include "memory/view_space.h"

namespace glake {

// What is asked for: GLAKE_STITCHED or a contiguous kind, by name or for its size; or room for
// another allocator, which takes whole granules too.
struct Asked {
  int kind = GLAKE_STITCHED;
  bool by_size = false;
  bool claim = false;
};

// One driver allocation. What the driver has of it is taken apart step by step, so that a refused
// step is tried again later and nothing is lost.
struct Chunk {
  int kind = GLAKE_CONTIGUOUS_VMM;
  Address base = 0;  // reserved (VMM) or allocated (legacy); 0: not
  Bytes bytes = 0;   // whole granules
  Handle handle = 0;
  bool mapped = false;
  bool live = false;
  uint32_t pins = 0;
  Block* block = nullptr;       // its one record, live or cached
  std::vector<Ticket> tickets;  // of the last free
};

// Under the device's hot lock, but for make() and unmake(), which call the driver: those need slow
// and the device's context.
class ContiguousPool {
 public:
  ContiguousPool(Driver& driver, int device, Refusals& refusals)
      : driver_(driver), device_(device), refusals_(refusals) {}

  // A cached chunk of this kind for `need` bytes, a quarter or two granules too long at most: one
  // whose past work is ordered before the stream's next first, else, where waiting is allowed, the
  // smallest after a wait. Null if there is none.
  Chunk* reuse(int kind, Bytes need, StreamId stream, StreamClock& clock, bool may_wait);
  void cache(Chunk* chunk);

  // A chunk: one owed to the driver of just that size first, else a new one. A refusal is undone at
  // once, or owed.
  Status make(int kind, Bytes bytes, const std::vector<int>& grants, std::unique_ptr<Chunk>* made);
  void add(std::unique_ptr<Chunk> chunk);
  // The longest block of this kind, of `most` at most, that the driver gives now: asked of it by
  // halving, each one made and given back (17 at most on a device of 128 GiB).
  Granules probe(int kind, Granules most, const std::vector<int>& grants);
  // Takes a cached chunk out, to be unmade.
  std::unique_ptr<Chunk> remove(Chunk* chunk);
  // Gives it back to the driver; what is refused is owed. True if nothing is left of it.
  bool unmake(std::unique_ptr<Chunk> chunk);
  // Tries again what is owed. True if nothing is.
  bool settle();
  // What the driver said when it last refused to make, or be probed for, one.
  const std::string& refused() const { return refused_; }
  bool owes() const { return !owed_.empty(); }
  // True if make() needs no new memory.
  bool owes(int kind, Bytes bytes) const { return find_owed(kind, bytes) != owed_.end(); }

  static size_t number(int kind) { return kind == GLAKE_CONTIGUOUS_VMM ? 0 : 1; }
  std::vector<Chunk*> cached() const;
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& chunk : chunks_) visit(*chunk);
  }
  bool any_cached() const { return !cached_[0].empty() || !cached_[1].empty(); }
  Granules physical() const { return {physical_.load()}; }
  // Granules of those that the driver refused to take back.
  Granules owed() const { return {owed_physical_.load()}; }
  // Addresses that it refused to take back, with no memory behind them any more. Under slow.
  Bytes owed_addresses() const;
  Bytes cached_bytes() const { return cached_bytes_; }
  // Of these, what cannot go back to the driver before it is unpinned.
  Bytes cached_pinned_bytes() const;
  // The largest block of this kind that the stream can have without new memory: a cached chunk, or
  // one that is owed.
  Bytes largest_kept(int kind, StreamId stream, StreamClock& clock) const;

 private:
  using Index = std::multimap<Bytes, Chunk*>;
  Index& index(int kind) { return cached_[number(kind)]; }
  Status told(const char* call, Status s);
  std::vector<std::unique_ptr<Chunk>>::const_iterator find_owed(int kind, Bytes bytes) const;
  Status build(Chunk& chunk, const std::vector<int>& grants);
  Status take_apart(Chunk& chunk);

  Driver& driver_;
  int device_;
  Refusals& refusals_;
  std::string refused_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  Index cached_[2];  // by bytes
  Bytes cached_bytes_ = 0;
  std::atomic<uint64_t> physical_{0};         // granules the driver counts, owed ones included
  std::atomic<uint64_t> owed_physical_{0};    // granules of owed_
  std::vector<std::unique_ptr<Chunk>> owed_;  // under slow
};

}  // namespace glake
