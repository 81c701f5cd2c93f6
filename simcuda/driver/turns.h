// Decides which thread goes on. It knows the threads at work. Time stands still until all of them
// wait in the driver. It also knows the threads inside a blocking call, in the order in which they
// leave it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <utility>
#include <vector>

#include "clock.h"
#include "op.h"
#include "pending.h"

namespace simcuda {

// A thread inside a blocking call. `released`: what it waits for has happened. Then it goes on: in
// its turn, if it is a thread at work (registered), and at once otherwise.
struct Waiter {
  std::vector<OpPtr> ops;  // any of these
  uint64_t deadline_ns = UINT64_MAX;
  bool registered = false, released = false;
  std::condition_variable wake;
};

class Turns {
 public:
  Turns(const Clock* clock, const PendingWork* pending);

  // Says that the calling thread is at work from now on, or no longer.
  void join(bool join);
  bool joined() const;
  void expect(int threads);  // that many will join; negative: they will not after all
  bool expecting() const { return expected_ > 0; }
  // Says that the calling thread waits outside the driver from now on, or no longer. It does
  // nothing for a thread that has not joined.
  void step_aside(bool away);
  // Says that the thread is inside a call that lets others go on, or no longer.
  void inside(bool in) { inside_ += in ? 1 : -1; }
  // Says that the thread runs a function of stream work. The clock stands still meanwhile.
  void run_function(bool begins);

  bool nobody_at_work() const {
    return registered_ <= inside_ && expected_ == 0 && functions_ == 0;
  }
  bool any_turn() const { return !turns_.empty(); }
  bool may_advance() const { return nobody_at_work() && turns_.empty(); }
  bool stalled();
  // If nobody is at work, lets the next thread go on, or a waiting one move the clock.
  void hand_over();

  void enter(Waiter* waiter);
  void leave(Waiter* waiter);
  // Releases by rank, and within one rank in the order of the calls.
  void release(Waiter* waiter, int64_t rank = INT64_MAX);
  void release_for(const OpPtr& op);
  bool may_leave(const Waiter& waiter);
  bool anybody_waits() const { return !waiters_.empty(); }

  bool deadline_due() const;
  uint64_t next_deadline() const;  // UINT64_MAX: none
  bool reach_deadlines();          // returns whether any deadline is reached

  void stop();  // ends all waits
  bool stopping() const { return stopping_; }

 private:
  using Turn = std::pair<int64_t, uint64_t>;  // expected threads by rank, then the others in order
  void busy(bool more);                       // the calling thread is at work, or no longer

  const Clock* const clock_;
  const PendingWork* const pending_;
  const uint64_t life_;  // no other object ever has it
  bool stopping_ = false;
  // The numbers of threads at work, of those inside a wait, of announced threads, and of functions
  // under way.
  int registered_ = 0, inside_ = 0, expected_ = 0, functions_ = 0;
  std::vector<int> busy_;  // the system's numbers of the threads at work
  std::vector<Waiter*> waiters_;
  std::map<Turn, Waiter*> turns_;  // released threads that have not gone on yet
  uint64_t turn_count_ = 0;
  uint64_t stall_sequence_ = 0, stall_ns_ = 0, stall_turns_ = 0;
  std::chrono::steady_clock::time_point stall_since_;
};

}  // namespace simcuda
