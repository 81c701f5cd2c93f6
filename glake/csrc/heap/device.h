// What the heaps of one device have in common, and the heaps: its own, and those of its private
// pools.
//
// Two locks. `hot` guards the books and is never held across a call that maps memory; `slow` admits
// one thread at a time to the paths that do. A thread takes slow before hot, never after. Methods
// that take a guard let hot go meanwhile; they need slow, and the device's context current.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/options.h"
#include "base/stats.h"
#include "heap/debug_hooks.h"
#include "heap/driver_shortage.h"
#include "heap/heap.h"
#include "heap/large_keeping.h"
#include "heap/thread_cache.h"
#include "memory/block_pool.h"
#include "memory/contiguous_pool.h"
#include "memory/fair_mutex.h"
#include "memory/stream_clock.h"

namespace glake {

// A block that other processes may open, as its caller has it.
struct Share {
  Block* block;
  Address ptr;
  Bytes bytes;
};

struct Device {
  // Makes no driver call; start() does.
  Device(Driver& driver, int number, const Options& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Throws Error(GLAKE_DRIVER_ERROR) saying what was refused.
  void require(Status s, const char* what) const;
  // The heaps that have had memory, the device's own first.
  std::vector<Heap*> heaps();

  // A request as it starts, under hot.
  Request request(Bytes bytes, StreamHandle stream);
  // Adds up what threads have counted for themselves.
  void collect_caches();

  // Granules held from the driver, by all heaps.
  Granules physical() const;
  // What counts against the limit. What is owed to the driver is used first, and held already.
  Granules under_limit() const;
  // By how much the arenas may grow under the limit.
  Granules room() const;
  // How much is held above a limit that was lowered.
  Granules above_limit() const;
  // The room is at least as large as what is held.
  bool plentiful() const;
  // The same for contiguous blocks, which take nothing that is owed.
  Granules allocation_room() const;
  Granules allocations_above_limit() const;
  // What is held although it is in no segment: the driver refused to take it back. Of the
  // statistics, glake.owed_bytes alone counts it. Takes no lock.
  Granules owed() const { return Granules{deferred.handles()} + contiguous.owed(); }
  // The same with what is owed of other processes' blocks. Nothing here can use that again.
  Bytes owed_bytes() const { return owed().bytes() + imported; }
  Bytes headroom() const { return driver.headroom(number); }
  // The part of the driver's free memory that is headroom: it stays free for others.
  Granules kept_of(Bytes driver_free) const;
  // What the driver reports free without the headroom, and what it is owed. 0 if it does not say.
  Granules driver_has();

  // Tries to give back what is owed. With kAgain memory is wanted now: owed memory that is still
  // mapped is taken into use.
  enum class Use { kNoMore, kAgain };
  void settle(HotGuard& guard, Use use = Use::kNoMore);
  // Waits on the host for all the device's work; what was freed before is then free for every
  // stream.
  Status synchronize(HotGuard& guard);
  // Waits on the host for the work that freed memory waits for. No request is then refused because
  // of it. False if the wait told nothing.
  bool wait_for_work(HotGuard& guard);

  Driver& driver;
  const int number;
  Options options;
  HotLock hot;
  FairMutex slow;
  StreamClock clock;
  Stats stats;
  BlockPool blocks;
  Refusals refusals;
  DeferredReleases deferred;
  ContiguousPool contiguous;
  std::unordered_map<uint64_t, Share> shares;  // by number
  std::vector<int> grants;                     // devices every mapping is accessible from
  std::atomic<uint64_t> backed{0};             // granules behind all heaps
  // Of other processes' blocks that the driver refused to take back: memory, and addresses alone.
  std::atomic<Bytes> imported{0}, imported_addresses{0};
  Bytes outside = 0;  // claimed for other allocators' memory (glake_claim_outside)
  Granules limit;
  double limit_fraction = 0;  // as set at run time; 0: not
  Bytes total_memory = 0;
  bool attached = false;
  LargeKeeping keeping;  // by threads, of their large blocks
  DriverShortage shortage;
  uint64_t creates_before = 0, releases_before = 0;  // driver calls the reset counts leave out
  uint64_t steps = 0;
  std::vector<std::unique_ptr<ThreadCache>> caches;
  std::vector<Block*> drained;  // scratch of Frees::drain_caches()
  std::unique_ptr<DebugHooks> debug;

  std::unique_ptr<Heap> own;
  // Changed under both locks; a heap whose pool has ended serves the next one, addresses and all.
  std::map<PoolId, std::unique_ptr<Heap>> pools;
  std::vector<std::unique_ptr<Heap>> spare;

 private:
  Status wait_for_device(HotGuard& guard);

  uint64_t replaced_seen_ = 0;  // of the clock's
};

}  // namespace glake
