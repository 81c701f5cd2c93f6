#include "turns.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>

namespace simcuda {
namespace {

// Real time without any event: until sleeping threads at work count as blocked, and until the clock
// waits for no thread.
constexpr std::chrono::milliseconds kStall{200}, kGiveUp{10000};

std::atomic<uint64_t> lives{0};
// The life of the object that this thread has joined; 0: none.
thread_local uint64_t registered_with = 0;

int thread_number() {
  static thread_local const auto id = static_cast<int>(syscall(SYS_gettid));
  return id;
}

// On a busy machine a thread may be ready and not run for long. That is not a stall.
bool asleep(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(") ");
  return name_end == std::string::npos || text[name_end + 2] == 'S';
}

}  // namespace

Turns::Turns(const Clock* clock, const PendingWork* pending)
    : clock_(clock), pending_(pending), life_(++lives) {}

bool Turns::joined() const { return registered_with == life_; }

void Turns::join(bool join) {
  if (clock_->paced()) return;  // the clock waits for no thread
  if (join == joined()) return;
  if (join && expected_ > 0) --expected_;
  registered_with = join ? life_ : 0;
  registered_ += join ? 1 : -1;
  busy(join);
  hand_over();
}

void Turns::expect(int threads) {
  if (clock_->paced()) return;
  expected_ = std::max(0, expected_ + threads);
  hand_over();
}

void Turns::step_aside(bool away) {
  if (!joined()) return;
  inside(away);
  busy(!away);
  hand_over();
}

void Turns::run_function(bool begins) {
  functions_ += begins ? 1 : -1;
  busy(begins);
}

void Turns::busy(bool more) {
  if (more) {
    busy_.push_back(thread_number());
    return;
  }
  const auto found = std::find(busy_.begin(), busy_.end(), thread_number());
  if (found != busy_.end()) busy_.erase(found);
}

// A thread at work may be blocked outside the driver, for example on a lock, by a thread that waits
// in the driver. When all threads at work have slept for a while of real time, time moves on
// without them.
bool Turns::stalled() {
  const auto now = std::chrono::steady_clock::now();
  const uint64_t sequence = pending_->enqueued(), moment = clock_->moment_ns();
  if (sequence != stall_sequence_ || moment != stall_ns_ || turn_count_ != stall_turns_) {
    stall_sequence_ = sequence;
    stall_ns_ = moment;
    stall_turns_ = turn_count_;
    stall_since_ = now;
  }
  if (now - stall_since_ <= kStall) return false;
  return now - stall_since_ > kGiveUp ||
         (expected_ == 0 && std::all_of(busy_.begin(), busy_.end(), asleep));
}

void Turns::hand_over() {
  if (!nobody_at_work()) return;
  if (!turns_.empty()) {
    turns_.begin()->second->wake.notify_one();
  } else if (!waiters_.empty()) {
    waiters_.front()->wake.notify_one();
  }
}

void Turns::enter(Waiter* waiter) {
  waiters_.push_back(waiter);
  if (!waiter->registered) return;
  inside(true);
  busy(false);
}

void Turns::leave(Waiter* waiter) {
  waiters_.erase(std::find(waiters_.begin(), waiters_.end(), waiter));
  if (!waiter->registered) return;
  inside(false);
  busy(true);
  const auto mine = std::find_if(turns_.begin(), turns_.end(),
                                 [&](const auto& turn) { return turn.second == waiter; });
  if (mine != turns_.end()) turns_.erase(mine);
  ++turn_count_;
}

void Turns::release(Waiter* waiter, int64_t rank) {
  if (waiter->released) return;
  waiter->released = true;
  if (waiter->registered) {
    turns_[{rank, ++turn_count_}] = waiter;
  } else {
    waiter->wake.notify_one();
  }
}

void Turns::release_for(const OpPtr& op) {
  for (Waiter* waiter : waiters_) {
    const auto& ops = waiter->ops;
    if (std::find(ops.begin(), ops.end(), op) != ops.end()) release(waiter);
  }
}

bool Turns::may_leave(const Waiter& waiter) {
  if (!waiter.released) return false;
  if (!waiter.registered) return true;
  return turns_.begin()->second == &waiter && (nobody_at_work() || stalled());
}

bool Turns::deadline_due() const {
  return std::any_of(waiters_.begin(), waiters_.end(), [&](const Waiter* waiter) {
    return waiter->deadline_ns <= clock_->moment_ns();
  });
}

uint64_t Turns::next_deadline() const {
  uint64_t next = UINT64_MAX;
  for (const Waiter* waiter : waiters_) next = std::min(next, waiter->deadline_ns);
  return next;
}

bool Turns::reach_deadlines() {
  bool any = false;
  for (Waiter* waiter : waiters_) {
    if (waiter->deadline_ns > clock_->moment_ns()) continue;
    release(waiter);
    any = true;
  }
  return any;
}

void Turns::stop() {
  stopping_ = true;
  for (Waiter* waiter : waiters_) waiter->wake.notify_one();
}

}  // namespace simcuda
