// The lock inside a driver, as far as programs notice it (option driver_lock). Some calls block
// every call of another thread that enqueues work. Some wait for all work under way, and some do
// both. Such a call waits for ever if a stream waits for a value that only a later call can write.
// Seen on a GPU: a cuMemFree, a stream's cuStreamWaitValue32 and another thread's cuMemcpyHtoDAsync
// (lupine, pull request 679); cudaFree beside host functions (AMReX, pull request 4044);
// cuMemFreeHost beside collectives (NCCL, issue 48).
//
// The kind of each call was measured on one H200 with driver 580.159.04, and on no other GPU or
// driver (benchmarks/gpu/results/2026-11-27-NVIDIA-H200-1.json, "driver lock"). Contexts, peers and
// cuIpcCloseMemHandle were not measured. Calls with another name for the same thing, such as
// cuMemAllocHost, were not measured either. It is assumed that a call waits for the work of every
// device, and not only of its own.
//
// A call's own time (option call_time) is a second lock, that of a context: the calls of several
// threads that enqueue work in one context take their times one after the other (option call_lock).
// No document promises that they run side by side, and no GPU was asked. A device's contexts count
// as one.
#pragma once

#include <map>
#include <vector>

#include "context.h"
#include "scheduler.h"
#include "symbols.h"

namespace simcuda {

enum class LockSide {
  kNone,              // neither waits, nor blocks others, nor is blocked
  kShared,            // enqueues work; is blocked by others
  kExcludes,          // blocks others for its own time, and is blocked; waits for no work
  kWaits,             // waits for all work, and blocks nobody
  kWaitsAndExcludes,  // blocks others while it waits for all work
};
LockSide lock_side(Symbol symbol);

class DriverLock {
 public:
  // `on`: option driver_lock. `by_context`: option call_lock.
  void start(Scheduler* scheduler, Contexts* contexts, bool on, bool by_context) {
    scheduler_ = scheduler;
    contexts_ = contexts;
    on_ = on;
    by_context_ = by_context;
  }

  // What a call's time depends on, apart from its kind: pages, copies or nodes of a graph. The call
  // goes into the contexts of these devices; if there are none, into the current one.
  struct Load {
    uint64_t pages = 0;
    std::vector<int> devices;
  };
  // One call's time under the lock. The driver's mutex is held, and may be released meanwhile.
  class Turn {
   public:
    Turn(DriverLock* owner, Lock* lock, Symbol symbol, const Load& load);
    Turn(DriverLock* owner, Lock* lock, Symbol symbol, const Load& load, LockSide side);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();

   private:
    DriverLock* owner_;
    OpPtr mine_;  // ends when this call ends, if it blocks others
  };

 private:
  uint64_t wait_ns(uint64_t own_ns, std::vector<int> devices);

  Scheduler* scheduler_ = nullptr;
  Contexts* contexts_ = nullptr;
  bool on_ = false, by_context_ = false;
  OpPtr holder_;                       // the call under way that blocks others
  std::map<int, uint64_t> free_from_;  // by device: when the calls into its context are over
};

}  // namespace simcuda
