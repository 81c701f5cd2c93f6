// What the heaps of one device have in common, and the heaps.
//
// Two locks. `hot` guards the books and is never held across a call that maps memory; `slow` admits
// one thread at a time to the paths that do. A thread takes slow before hot, never after. Methods
// that take a guard let hot go meanwhile; they need slow, and the device's context current.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/options.h"
#include "base/stats.h"
#include "heap/debug_hooks.h"
#include "heap/driver_shortage.h"
#include "heap/heaps.h"
#include "heap/large_keeping.h"
#include "heap/memory_book.h"
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
  // A request as it starts, under hot.
  Request request(Bytes bytes, StreamHandle stream);
  // Adds up what threads have counted for themselves.
  void collect_caches();

  // Threads may keep large blocks: memory is not short.
  bool plentiful() const;

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
  MemoryBook memory;
  bool attached = false;
  LargeKeeping keeping;  // by threads, of their large blocks
  DriverShortage shortage;
  uint64_t creates_before = 0, releases_before = 0;  // driver calls the reset counts leave out
  uint64_t steps = 0;
  std::vector<std::unique_ptr<ThreadCache>> caches;
  std::vector<Block*> drained;  // scratch of Frees::drain_caches()
  std::unique_ptr<DebugHooks> debug;

  Heaps heaps;  // last, as heaps use the rest

 private:
  Status wait_for_device(HotGuard& guard);

  uint64_t replaced_seen_ = 0;  // of the clock's
};

}  // namespace glake
