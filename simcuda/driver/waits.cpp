// Who waits for what: threads inside blocking calls, threads at work for whom time stands still,
// and the order in which they go on.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "books.h"
#include "scheduler.h"

namespace simcuda {
namespace {

// Without anything happening: until threads at work that sleep count as blocked, and until any do.
constexpr std::chrono::milliseconds kStall{200}, kGiveUp{10000};
// Pieces of work: a guess, that costs some 30 MB. A GPU takes a thousand launches or so.
constexpr size_t kMostPending = size_t{1} << 15;
// Between two looks at words that the host writes.
constexpr std::chrono::milliseconds kLook{1};

// The life of the scheduler this thread is registered with; 0: none.
thread_local uint64_t registered_with = 0;

int this_thread() {
  static thread_local const auto id = static_cast<int>(syscall(SYS_gettid));
  return id;
}

// On a busy machine a thread may be ready to run and not run for long: that is no stall.
bool asleep(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(") ");
  return name_end == std::string::npos || text[name_end + 2] == 'S';
}

}  // namespace

bool Scheduler::registered_here() const { return registered_with == life_; }

void Scheduler::register_thread(bool join) {
  if (paced()) return;  // the clock waits for nobody
  if (join == registered_here()) return;
  if (join && expected_ > 0) --expected_;
  registered_with = join ? life_ : 0;
  registered_ += join ? 1 : -1;
  busy(join);
  if (nobody_at_work()) hand_over();
}

void Scheduler::register_thread(Lock* lock, int rank) {
  if (registered_here()) return;
  const bool expected = expected_ > 0 && !threaded_;
  register_thread(true);
  if (!expected) return;
  Waiter waiter;
  waiter.registered = true;
  release(&waiter, rank);
  stay(lock, &waiter);
}

void Scheduler::expect(int threads) {
  if (paced()) return;
  expected_ = std::max(0, expected_ + threads);
  if (nobody_at_work()) hand_over();
}

void Scheduler::step_aside(bool away) {
  if (!registered_here()) return;
  inside_ += away ? 1 : -1;
  busy(!away);
  if (nobody_at_work()) hand_over();
}

bool Scheduler::nobody_at_work() const {
  return registered_ <= inside_ && expected_ == 0 && functions_ == 0;
}

bool Scheduler::may_advance() const { return nobody_at_work() && turns_.empty(); }

void Scheduler::busy(bool more) {
  if (more) {
    busy_.push_back(this_thread());
    return;
  }
  const auto found = std::find(busy_.begin(), busy_.end(), this_thread());
  if (found != busy_.end()) busy_.erase(found);
}

// A thread at work may be blocked outside the driver by one that waits in it (on a lock, say). When
// all of them have slept for a while of real time, time moves on without them.
bool Scheduler::stalled() {
  const auto now = std::chrono::steady_clock::now();
  if (sequence_ != stall_sequence_ || now_ns_ != stall_ns_ || turn_count_ != stall_turns_) {
    stall_sequence_ = sequence_;
    stall_ns_ = now_ns_;
    stall_turns_ = turn_count_;
    stall_since_ = now;
  }
  if (now - stall_since_ <= kStall) return false;
  return now - stall_since_ > kGiveUp ||
         (expected_ == 0 && std::all_of(busy_.begin(), busy_.end(), asleep));
}

void Scheduler::release(Waiter* waiter, int64_t rank) {
  if (waiter->released) return;
  waiter->released = true;
  if (waiter->registered) {
    turns_[{rank, ++turn_count_}] = waiter;
  } else {
    waiter->wake.notify_one();
  }
}

// Nobody is at work: the next one goes on, or whoever waits moves the clock.
void Scheduler::hand_over() {
  if (!turns_.empty()) {
    turns_.begin()->second->wake.notify_one();
  } else if (!waiters_.empty()) {
    waiters_.front()->wake.notify_one();
  }
}

bool Scheduler::deadline_due() const {
  return std::any_of(waiters_.begin(), waiters_.end(),
                     [&](const Waiter* waiter) { return waiter->deadline_ns <= now_ns_; });
}

uint64_t Scheduler::next_deadline() const {
  uint64_t next = UINT64_MAX;
  for (const Waiter* waiter : waiters_) next = std::min(next, waiter->deadline_ns);
  return next;
}

bool Scheduler::reach_deadlines() {
  bool any = false;
  for (Waiter* waiter : waiters_) {
    if (waiter->deadline_ns > now_ns_) continue;
    release(waiter, INT64_MAX);
    any = true;
  }
  return any;
}

bool Scheduler::may_leave(const Waiter& waiter) {
  if (!waiter.released) return false;
  if (!waiter.registered) return true;
  return turns_.begin()->second == &waiter && (nobody_at_work() || stalled());
}

void Scheduler::make_progress(Lock* lock, Waiter* waiter) {
  if (paced()) {
    work_.notify_one();
    waiter->wake.wait_for(*lock, kStall);  // the timekeeper releases it
    return;
  }
  if (may_advance() || (turns_.empty() && stalled())) {
    if (advance(lock)) return;
    if (!deadline_due()) {
      // Only a value somebody writes can help: make the writes that are due, then look again.
      apply_timed(lock);
      if (poll_waiters()) return;
    }
  }
  if (nobody_at_work() && !turns_.empty() && !may_leave(*waiter)) hand_over();
  if (!may_leave(*waiter)) waiter->wake.wait_for(*lock, kLook);
}

// Until what the waiter waits for has happened and it is its turn.
void Scheduler::stay(Lock* lock, Waiter* waiter) {
  waiters_.push_back(waiter);
  if (waiter->registered) {
    ++inside_;
    busy(false);
  }
  while (!stopping_ && !may_leave(*waiter)) make_progress(lock, waiter);
  waiters_.erase(std::find(waiters_.begin(), waiters_.end(), waiter));
  if (!waiter->registered) return;
  --inside_;
  busy(true);
  const auto mine = std::find_if(turns_.begin(), turns_.end(),
                                 [&](const auto& turn) { return turn.second == waiter; });
  if (mine != turns_.end()) turns_.erase(mine);
  ++turn_count_;
}

// Until one is timed, or the deadline; whether one is.
bool Scheduler::await(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns) {
  const auto timed = [&] {
    return std::any_of(ops.begin(), ops.end(), [](const OpPtr& op) { return op->timed; });
  };
  if (timed()) return true;
  Waiter waiter;
  waiter.ops = ops;
  if (paced()) now_ns_ = shared_->now_ns();
  waiter.deadline_ns = std::max(deadline_ns, now_ns_);
  waiter.registered = registered_here();
  if (waiter.deadline_ns == now_ns_) {
    start_ready();  // what takes no time
    release(&waiter, INT64_MAX);
  }
  stay(lock, &waiter);
  return timed() || stopping_;
}

CUresult Scheduler::wait(Lock* lock, const OpPtr& op, uint64_t deadline_ns) {
  if (op == nullptr || op->applied) return CUDA_SUCCESS;
  if (threaded_) return wait_threaded(lock, {op}, deadline_ns);
  return await(lock, {op}, deadline_ns) ? apply(lock, {op}) : CUDA_ERROR_NOT_READY;
}

CUresult Scheduler::wait_any(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns) {
  if (threaded_) return wait_threaded(lock, ops, deadline_ns);
  return await(lock, ops, deadline_ns) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult Scheduler::wait_device(Lock* lock, int device) {
  CUresult result = CUDA_SUCCESS;
  std::vector<OpPtr> targets;
  for (const auto& [seq, op] : pending_) {
    if (device < 0 || op->device == device) targets.push_back(op);
  }
  for (const OpPtr& op : targets) {
    if (threaded_) {
      result = wait_threaded(lock, {op}, UINT64_MAX);
      continue;
    }
    if (op->timed || op->applied) continue;
    Waiter waiter;
    waiter.ops = {op};
    waiter.registered = registered_here();
    stay(lock, &waiter);
  }
  return threaded_ ? result : apply(lock, targets);
}

void Scheduler::await_end(Lock* lock, const OpPtr& op) {
  if (threaded_) {
    changed_.wait(*lock, [&] { return over_for(op); });
    return;
  }
  if (over_for(op)) return;
  Waiter waiter;
  waiter.ops = {op};
  waiter.registered = registered_here();
  stay(lock, &waiter);
}

void Scheduler::quiesce(Lock* lock) {
  std::vector<OpPtr> targets;
  for (const auto& [seq, op] : pending_) targets.push_back(op);
  for (const OpPtr& op : targets) await_end(lock, op);
}

void Scheduler::end(const OpPtr& op) {
  op->applied = true;
  finish(op);
  changed_.notify_all();
  if (nobody_at_work()) hand_over();
}

void Scheduler::sleep(Lock* lock, uint64_t ns) {
  if (threaded_) {
    lock->unlock();
    std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
    lock->lock();
    return;
  }
  await(lock, {}, now_ns() + ns);
}

// A registered thread that polls lets the others go on, and time if all of them wait.
CUresult Scheduler::query_in_turn(Lock* lock, const OpPtr& op) {
  ++inside_;
  if (may_advance() && !advance(lock) && !deadline_due()) {
    apply_timed(lock);
    poll_waiters();
  }
  --inside_;
  if (turns_.empty()) return CUDA_ERROR_NOT_READY;
  Waiter waiter;
  waiter.ops = {op};
  waiter.registered = true;
  release(&waiter, INT64_MAX);
  stay(lock, &waiter);
  return CUDA_ERROR_NOT_READY;
}

CUresult Scheduler::query(Lock* lock, const OpPtr& op) {
  if (op == nullptr || op->applied) return CUDA_SUCCESS;
  if (threaded_) return CUDA_ERROR_NOT_READY;
  if (polled_) {
    const double us = books().price(static_cast<int>(Symbol::k_cuEventQuery)).first_us;
    sleep(lock, static_cast<uint64_t>(us * 1000));
  }
  if (op->timed) return apply(lock, {op});
  if (polled_ || paced()) return CUDA_ERROR_NOT_READY;
  if (registered_here()) return query_in_turn(lock, op);
  if (may_advance()) {
    if (!advance(lock) && !deadline_due()) {
      apply_timed(lock);
      poll_waiters();
    }
    if (nobody_at_work()) hand_over();
  }
  return CUDA_ERROR_NOT_READY;
}

void Scheduler::make_room(Lock* lock) {
  if (threaded_ || applying_ || pending_.size() < std::max(room_, kMostPending)) return;
  const uint64_t half = std::next(pending_.begin(), static_cast<long>(pending_.size() / 2))->first;
  const OpPtr last = pending_.at(half);
  const bool registered = registered_here();
  if (registered) ++inside_;
  while (!last->timed && may_advance() && advance(lock)) continue;
  if (registered) --inside_;
  std::vector<OpPtr> targets;
  for (const auto& [seq, op] : pending_) {
    if (seq > half) break;
    if (op->timed) targets.push_back(op);
  }
  if (!targets.empty()) {
    const CUresult result = apply(lock, targets);
    if (result != CUDA_SUCCESS) error_ = result;  // for the call that asks about this work
  }
  room_ = pending_.size() + kMostPending / 2;  // where the rest waits for the host
}

CUresult Scheduler::wait_threaded(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns) {
  const auto over = [&] {
    return stopping_ ||
           std::any_of(ops.begin(), ops.end(), [](const OpPtr& op) { return op->applied; });
  };
  if (deadline_ns == UINT64_MAX) {
    changed_.wait(*lock, over);
  } else {
    while (!over() && now_ns() < deadline_ns) {
      const uint64_t left = std::min<uint64_t>(deadline_ns - now_ns(), 1'000'000'000);
      changed_.wait_for(*lock, std::chrono::nanoseconds(left), over);
    }
    if (!over()) return CUDA_ERROR_NOT_READY;
  }
  return std::exchange(error_, CUDA_SUCCESS);
}

}  // namespace simcuda
