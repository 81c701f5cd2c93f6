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
#pragma once

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
  void start(Scheduler* scheduler, bool on) {
    scheduler_ = scheduler;
    on_ = on;
  }

  // One call's time under the lock. The driver's mutex is held, and may be released meanwhile.
  class Turn {
   public:
    Turn(DriverLock* owner, Lock* lock, Symbol symbol, uint64_t pages);
    Turn(DriverLock* owner, Lock* lock, Symbol symbol, uint64_t pages, LockSide side);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();

   private:
    DriverLock* owner_;
    OpPtr mine_;  // ends when this call ends, if it blocks others
  };

 private:
  Scheduler* scheduler_ = nullptr;
  bool on_ = false;
  OpPtr holder_;  // the call under way that blocks others
};

}  // namespace simcuda
