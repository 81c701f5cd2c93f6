// Calls that wait for stream work or ask about it. They release the lock meanwhile.
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
  // `timekeeper` is nullptr if the clock waits for the threads at work.
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

  // Waits until the work is done and its effects are made. CUDA_ERROR_NOT_READY: the clock has
  // reached `deadline_ns` first.
  CUresult wait(Lock* lock, const OpPtr& op, uint64_t deadline_ns = UINT64_MAX);
  // The same for any of them. The caller asks which one it was.
  CUresult wait_any(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns);
  CUresult wait_device(Lock* lock, int device);  // -1: all
  // For a driver's lock: waits until all work enqueued so far is over. Makes no effects, because no
  // program may rely on that wait.
  void quiesce(Lock* lock);
  // Waits until the work is over, whether its effects are made or not.
  void await_end(Lock* lock, const OpPtr& op);
  void sleep(Lock* lock, uint64_t ns);
  bool polled() const { return polled_ && !clock_->threaded(); }
  // Returns CUDA_SUCCESS with effects made, or CUDA_ERROR_NOT_READY after moving time. If
  // completion is polled, time moves by the call's cost. Otherwise it moves to the next event.
  CUresult query(Lock* lock, const OpPtr& op);
  // For a launch, which waits on a GPU as well if very many are queued. Completes the older half of
  // the work, as far as possible without the host.
  void make_room(Lock* lock);
  // An expected thread is at work, and goes on in its turn. The lowest rank goes first.
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
  size_t room_ = 0;  // when this much work is pending, room is made again
};

}  // namespace simcuda
