// The lock inside a driver, as far as programs can notice it (option driver_lock). Some calls keep
// every other thread's call that enqueues work out, some wait for all work under way, and some do
// both. A call that does both, and a stream that waits for a value which only later calls can bring
// about, wait for each other for ever. Seen on a GPU: a cuMemFree, a stream's cuStreamWaitValue32
// and another thread's cuMemcpyHtoDAsync (lupine, pull request 679); cudaFree beside host functions
// (AMReX, pull request 4044); cuMemFreeHost beside collectives (NCCL, issue 48).
//
// Which call is of which kind was measured on one H200 with driver 580.159.04, and on no other GPU
// or driver (benchmarks/gpu/results/2026-11-27-NVIDIA-H200-1.json, "driver lock"). Not measured:
// contexts, peers and cuIpcCloseMemHandle, that a call waits for every device's work and not its
// own device's alone, and calls with another name for the same thing, such as cuMemAllocHost.
#pragma once

#include "scheduler.h"
#include "symbols.h"

namespace simcuda {

enum class LockSide {
  kNone,              // neither waits nor keeps out nor is kept out
  kShared,            // kept out: enqueues work
  kExcludes,          // keeps others out for its own time, and is kept out; waits for no work
  kWaits,             // waits for all work and keeps nobody out
  kWaitsAndExcludes,  // keeps others out for as long as it waits for all work
};
LockSide lock_side(Symbol symbol);

class DriverLock {
 public:
  void start(Scheduler* scheduler, bool on) {
    scheduler_ = scheduler;
    on_ = on;
  }

  // One call's time under the lock. The driver's mutex is held, and may be let go of meanwhile.
  class Turn {
   public:
    Turn(DriverLock* owner, Lock* lock, Symbol symbol);
    Turn(DriverLock* owner, Lock* lock, Symbol symbol, LockSide side);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();

   private:
    DriverLock* owner_;
    OpPtr mine_;  // ends when a call that keeps others out does
  };

 private:
  Scheduler* scheduler_ = nullptr;
  bool on_ = false;
  OpPtr holder_;  // the call under way that keeps others out
};

}  // namespace simcuda
