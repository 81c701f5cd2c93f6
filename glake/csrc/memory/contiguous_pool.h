// The contiguous blocks of a device. Each is one driver allocation, for callers that must see
// memory whole. Freed blocks are kept and reused by size. Their addresses lie outside the ranges of
// arenas and views, which the pointer map knows. So pointers that are unknown to the pointer map
// are looked up in ContiguousIndex.
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

// What a caller asks for. `kind` is GLAKE_STITCHED or a contiguous kind. `by_size`: the kind
// follows from the request's size (option `contiguous`), not from a call. `claim`: the memory is
// for another allocator, which takes whole granules.
struct Asked {
  int kind = GLAKE_STITCHED;
  bool by_size = false;
  bool claim = false;
};

// One driver allocation. It is given back to the driver step by step. A refused step is tried again
// later, so that nothing is lost.
struct Allocation {
  int kind = GLAKE_CONTIGUOUS_VMM;
  Address base = 0;  // where it is reserved (VMM) or allocated (legacy); 0: nowhere
  Bytes bytes = 0;   // whole granules
  Handle handle = 0;
  bool mapped = false;
  bool live = false;
  uint32_t pins = 0;
  Block* block = nullptr;       // its one record, live or cached
  std::vector<Ticket> tickets;  // of the last free
};

// Callers hold the device's hot lock. make() and unmake() call the driver, so their callers hold
// the slow lock and are in the device's context.
class ContiguousPool {
 public:
  ContiguousPool(Driver& driver, int device, Refusals& refusals)
      : driver_(driver), device_(device), refusals_(refusals) {}

  // Takes a cached allocation of this kind for `need` bytes. It is too long by at most a quarter,
  // or by two granules if that is more. An allocation whose past work is ordered before the
  // stream's next work is taken first. If there is none and `may_wait` is true, the stream is made
  // to wait for the smallest allocation's past work. Null if no allocation can be had.
  Allocation* reuse(int kind, Bytes need, StreamId stream, StreamClock& clock, bool may_wait);
  void cache(Allocation* allocation);

  // Makes an allocation. If an allocation of just this size is owed to the driver, it is used
  // again. If the driver refuses a step, the allocation is unmade at once, and what cannot be
  // unmade is owed.
  Status make(int kind, Bytes bytes, const std::vector<int>& grants,
              std::unique_ptr<Allocation>* made);
  void add(std::unique_ptr<Allocation> allocation);
  // The longest block of this kind that the driver gives now, up to `most`. It is found by halving:
  // each try makes a block and gives it back (at most 17 tries on a device of 128 GiB).
  Granules probe(int kind, Granules most, const std::vector<int>& grants);
  // Takes a cached allocation out of the pool. The caller then unmakes it.
  std::unique_ptr<Allocation> remove(Allocation* allocation);
  // Gives the allocation back to the driver. What the driver refuses to take is owed. True if
  // nothing is left of the allocation.
  bool unmake(std::unique_ptr<Allocation> allocation);
  // Tries again to give back what is owed. True if nothing is owed any more.
  bool settle();
  // What the driver said when it last refused to make an allocation, for make() or probe().
  const std::string& refused() const { return refused_; }
  bool owes() const { return !owed_.empty(); }
  // Whether an allocation of this kind and size is owed: make() then needs no new memory.
  bool owes(int kind, Bytes bytes) const { return find_owed(kind, bytes) != owed_.end(); }

  static size_t number(int kind) { return kind == GLAKE_CONTIGUOUS_VMM ? 0 : 1; }
  std::vector<Allocation*> cached() const;
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& allocation : allocations_) visit(*allocation);
  }
  bool any_cached() const { return !cached_[0].empty() || !cached_[1].empty(); }
  Granules physical() const { return {physical_.load()}; }
  // Granules that the driver refused to take back.
  Granules owed() const { return {owed_physical_.load()}; }
  // Bytes of addresses that the driver refused to take back and that have no memory behind them.
  // The caller holds the slow lock.
  Bytes owed_addresses() const;
  Bytes cached_bytes() const { return cached_bytes_; }
  // The cached bytes that are pinned. They cannot go back to the driver before they are unpinned.
  Bytes cached_pinned_bytes() const;
  // The largest block of this kind that the stream can have without new memory: a cached
  // allocation, or one that is owed.
  Bytes largest_kept(int kind, StreamId stream, StreamClock& clock) const;

 private:
  using Index = std::multimap<Bytes, Allocation*>;
  Index& index(int kind) { return cached_[number(kind)]; }
  Status told(const char* call, Status s);
  std::vector<std::unique_ptr<Allocation>>::const_iterator find_owed(int kind, Bytes bytes) const;
  Status build(Allocation& allocation, const std::vector<int>& grants);
  Status take_apart(Allocation& allocation);

  Driver& driver_;
  int device_;
  Refusals& refusals_;
  std::string refused_;
  std::vector<std::unique_ptr<Allocation>> allocations_;
  Index cached_[2];  // by bytes
  Bytes cached_bytes_ = 0;
  std::atomic<uint64_t> physical_{0};              // owed granules included
  std::atomic<uint64_t> owed_physical_{0};         // granules of owed_
  std::vector<std::unique_ptr<Allocation>> owed_;  // guarded by the slow lock
};

}  // namespace glake
