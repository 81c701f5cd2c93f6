// Calls that wait for stream work, or ask about it. They let go of the lock meanwhile.
#pragma once

#include <vector>

#include "applier.h"
#include "clock.h"
#include "op.h"
#include "options.h"
#include "pending.h"
#include "timekeeper.h"
#include "timeline.h"
#include "turns.h"
#include "workers.h"

namespace simcuda {

class Waits {
 public:
  // `timekeeper`: nullptr where the clock waits for who works.
  Waits(const Options& options, Clock* clock, const PendingWork* pending, Turns* turns,
        Applier* applier, Timeline* timeline, Timekeeper* timekeeper, Workers* workers)
      : clock_(clock),
        pending_(pending),
        turns_(turns),
        applier_(applier),
        timeline_(timeline),
        timekeeper_(timekeeper),
        workers_(workers),
        polled_(options.polled()) {}

  // Blocks until the work is done and its effects are made; CUDA_ERROR_NOT_READY once the clock is
  // at `deadline_ns`.
  CUresult wait(Lock* lock, const OpPtr& op, uint64_t deadline_ns = UINT64_MAX);
  // Until one of them is: the caller asks which.
  CUresult wait_any(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns);
  CUresult wait_device(Lock* lock, int device);  // -1: all
  // For a driver's lock: until all work that is enqueued by now is over. No effect is made, as no
  // program may rely on that wait.
  void quiesce(Lock* lock);
  // Until it is over, its effects made or not.
  void await_end(Lock* lock, const OpPtr& op);
  void sleep(Lock* lock, uint64_t ns);
  bool polled() const { return polled_ && !clock_->threaded(); }
  // CUDA_SUCCESS with effects made, or CUDA_ERROR_NOT_READY and time moves on: by the call's cost
  // where completion is polled, else to the next thing that happens.
  CUresult query(Lock* lock, const OpPtr& op);
  // Of a launch, which waits on a GPU as well where very many are queued: the older half is done,
  // as far as it can be without the host.
  void make_room(Lock* lock);
  // A thread that was expected is at work, and goes on in its turn, lowest rank first.
  void join(Lock* lock, int rank);

 private:
  void stay(Lock* lock, Waiter* waiter);
  void stay_for(Lock* lock, const OpPtr& op);
  bool await(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns);
  void make_progress(Lock* lock, Waiter* waiter);
  CUresult query_in_turn(Lock* lock, const OpPtr& op);

  Clock* const clock_;
  const PendingWork* const pending_;
  Turns* const turns_;
  Applier* const applier_;
  Timeline* const timeline_;
  Timekeeper* const timekeeper_;
  Workers* const workers_;
  const bool polled_;
  size_t room_ = 0;  // pending work at which to make room again
};

}  // namespace simcuda
