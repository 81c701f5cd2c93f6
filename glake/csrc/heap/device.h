// The heaps of one device, and what they have in common.
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

class Neighbours;

struct Device {
  // Makes no driver call; start() does.
  Device(Driver& driver, int number, const Options& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Throws Error(GLAKE_DRIVER_ERROR) saying what was refused.
  void require(Status s, const char* what) const;
  // Makes the request that an allocation starts with. Callers hold the hot lock.
  Request request(Bytes bytes, StreamHandle stream);
  // Adds what threads have counted for themselves to `stats`.
  void collect_caches();

  // True if memory is not short, so that threads may keep large blocks.
  bool plentiful() const;
  // How many large requests there have been since the statistics were last reset.
  int64_t large_requests();

  // Tries to give back to the driver what is owed. With kAgain, owed memory that is still mapped
  // after that is taken into use.
  enum class Use { kNoMore, kAgain };
  void settle(HotGuard& guard, Use use = Use::kNoMore);
  // Waits on the host for all the device's work. What was freed before is then free for every
  // stream.
  Status synchronize(HotGuard& guard);
  // Waits on the host for the work that must end before freed memory can be used again. After that,
  // no request is refused because of such work. False if the driver refused the wait.
  bool wait_for_work(HotGuard& guard);
  // Waits on the host for the work that is marked. That breaks no capture, even one on a stream
  // that nobody has named.
  void wait_for_marks(HotGuard& guard);

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
  std::vector<int> grants;                     // devices that may access every mapping
  MemoryBook memory;
  bool attached = false;
  LargeKeeping keeping;  // whether threads keep large blocks
  DriverShortage shortage;
  uint64_t creates_before = 0, releases_before = 0;  // driver calls before the counts were reset
  uint64_t steps = 0;
  std::vector<std::unique_ptr<ThreadCache>> caches;
  std::vector<Block*> drained;  // scratch of Frees::drain_caches()
  std::unique_ptr<DebugHooks> debug;
  Neighbours* neighbours = nullptr;  // null: this process does not cooperate

  Heaps heaps;  // last, as heaps use the rest

 private:
  Status wait_for_device(HotGuard& guard);
  std::vector<bool> named_streams() const;

  uint64_t replaced_seen_ = 0;  // what clock.replaced() was when it was last looked at
};

}  // namespace glake
