// The lock inside a driver, as far as programs can notice it (option driver_lock). A call that
// changes what memory or code there is takes it alone and waits for all work under way; meanwhile
// no other thread's call that enqueues work goes on. A stream that waits for a value which only
// later calls can bring about then waits for ever. Seen on a GPU: a cuMemFree, a stream's
// cuStreamWaitValue32 and another thread's cuMemcpyHtoDAsync (lupine, pull request 679); cudaFree
// beside host functions (AMReX, pull request 4044); cuMemFreeHost beside collectives (NCCL, issue
// 48). Which other calls take the lock, and that they wait for every device's work, is assumed.
#pragma once

#include "scheduler.h"
#include "symbols.h"

namespace simcuda {

enum class LockSide { kNone, kShared, kExclusive };
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
    OpPtr mine_;  // ends when an exclusive call does
  };

 private:
  Scheduler* scheduler_ = nullptr;
  bool on_ = false;
  OpPtr holder_;  // the exclusive call under way
};

}  // namespace simcuda
