// Who goes on: threads at work, for each of whom time waits, and those inside a blocking call, in
// the order in which they leave it.
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

// A thread inside a blocking call. `released`: what it waits for has happened; one that is at work
// otherwise goes on in its turn.
struct Waiter {
  std::vector<OpPtr> ops;  // any of them
  uint64_t deadline_ns = UINT64_MAX;
  bool registered = false, released = false;
  std::condition_variable wake;
};

class Turns {
 public:
  Turns(const Clock* clock, const PendingWork* pending);

  // The calling thread is at work from now on, or no more.
  void join(bool join);
  bool joined() const;
  void expect(int threads);  // about to join; negative: will not, after all
  bool expecting() const { return expected_ > 0; }
  // The calling thread, if it is at work, waits outside the driver.
  void step_aside(bool away);
  // It is inside a call that lets others go on, or no more.
  void inside(bool in) { inside_ += in ? 1 : -1; }
  // It runs a function of stream work: the clock stands still meanwhile.
  void run_function(bool begins);

  bool nobody_at_work() const {
    return registered_ <= inside_ && expected_ == 0 && functions_ == 0;
  }
  bool any_turn() const { return !turns_.empty(); }
  bool may_advance() const { return nobody_at_work() && turns_.empty(); }
  bool stalled();
  // If nobody is at work, the next one goes on, or whoever waits moves the clock.
  void hand_over();

  void enter(Waiter* waiter);
  void leave(Waiter* waiter);
  // By rank, those of one rank in the order of their release.
  void release(Waiter* waiter, int64_t rank = INT64_MAX);
  void release_for(const OpPtr& op);
  bool may_leave(const Waiter& waiter);
  bool anybody_waits() const { return !waiters_.empty(); }

  bool deadline_due() const;
  uint64_t next_deadline() const;  // UINT64_MAX: none
  bool reach_deadlines();          // whether any is

  void stop();  // nobody waits any more
  bool stopping() const { return stopping_; }

 private:
  using Turn = std::pair<int64_t, uint64_t>;  // expected threads by rank, then the others in order
  void busy(bool more);                       // the calling thread is at work, or no more

  const Clock* const clock_;
  const PendingWork* const pending_;
  const uint64_t life_;  // no other object's, ever
  bool stopping_ = false;
  // Threads at work, of them inside a wait, announced, and functions under way.
  int registered_ = 0, inside_ = 0, expected_ = 0, functions_ = 0;
  std::vector<int> busy_;  // system's numbers of the threads at work
  std::vector<Waiter*> waiters_;
  std::map<Turn, Waiter*> turns_;  // released, not gone on yet
  uint64_t turn_count_ = 0;
  uint64_t stall_sequence_ = 0, stall_ns_ = 0, stall_turns_ = 0;
  std::chrono::steady_clock::time_point stall_since_;
};

}  // namespace simcuda
