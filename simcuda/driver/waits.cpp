#include "waits.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "books.h"

namespace simcuda {
namespace {

// The pieces of work from which make_room() completes some. It is a guess that costs some 30 MB. A
// GPU queues about a thousand launches.
constexpr size_t kMostPending = size_t{1} << 15;
// The real time between two looks at words that the host writes, and between two looks whether the
// timekeeper has ended.
constexpr std::chrono::milliseconds kLook{1}, kPacedWait{200};

}  // namespace

void Waits::make_progress(Lock* lock, Waiter* waiter) {
  if (timekeeper_ != nullptr) {
    timekeeper_->wake();
    waiter->wake.wait_for(*lock, kPacedWait);  // the timekeeper releases the waiter
    return;
  }
  if (turns_->may_advance() || (!turns_->any_turn() && turns_->stalled())) {
    if (timeline_->advance_or_write(lock)) return;
  }
  if (turns_->any_turn() && !turns_->may_leave(*waiter)) turns_->hand_over();
  if (!turns_->may_leave(*waiter)) waiter->wake.wait_for(*lock, kLook);
}

// Waits until the waiter's event has happened and it is the waiter's turn.
void Waits::stay(Lock* lock, Waiter* waiter) {
  turns_->enter(waiter);
  while (!turns_->stopping() && !turns_->may_leave(*waiter)) make_progress(lock, waiter);
  turns_->leave(waiter);
}

void Waits::stay_for(Lock* lock, const OpPtr& op) {
  Waiter waiter;
  waiter.ops = {op};
  waiter.registered = turns_->joined();
  stay(lock, &waiter);
}

// Waits until one of `ops` is timed, or until the deadline. Returns whether one of them is timed.
bool Waits::await(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns) {
  const auto timed = [&] {
    return std::any_of(ops.begin(), ops.end(), [](const OpPtr& op) { return op->timed; });
  };
  if (timed()) return true;
  Waiter waiter;
  waiter.ops = ops;
  clock_->catch_up();
  waiter.deadline_ns = std::max(deadline_ns, clock_->moment_ns());
  waiter.registered = turns_->joined();
  if (waiter.deadline_ns == clock_->moment_ns()) {
    timeline_->start_ready();  // starts what takes no time
    turns_->release(&waiter);
  }
  stay(lock, &waiter);
  return timed() || turns_->stopping();
}

CUresult Waits::wait(Lock* lock, const OpPtr& op, uint64_t deadline_ns) {
  if (op == nullptr || op->applied) return CUDA_SUCCESS;
  if (clock_->threaded()) return workers_->wait(lock, {op}, deadline_ns);
  return await(lock, {op}, deadline_ns) ? applier_->apply(lock, {op}) : CUDA_ERROR_NOT_READY;
}

CUresult Waits::wait_any(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns) {
  if (clock_->threaded()) return workers_->wait(lock, ops, deadline_ns);
  return await(lock, ops, deadline_ns) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult Waits::wait_device(Lock* lock, int device) {
  CUresult result = CUDA_SUCCESS;
  const std::vector<OpPtr> targets = pending_->all(device);
  for (const OpPtr& op : targets) {
    if (clock_->threaded()) {
      result = workers_->wait(lock, {op}, UINT64_MAX);
    } else if (!op->timed && !op->applied) {
      stay_for(lock, op);
    }
  }
  return clock_->threaded() ? result : applier_->apply(lock, targets);
}

void Waits::await_end(Lock* lock, const OpPtr& op) {
  if (clock_->threaded()) {
    workers_->await_end(lock, op);
  } else if (!op->timed && !op->applied && !turns_->stopping()) {
    stay_for(lock, op);
  }
}

void Waits::quiesce(Lock* lock) {
  const std::vector<OpPtr> targets = pending_->all();
  for (const OpPtr& op : targets) await_end(lock, op);
}

void Waits::sleep(Lock* lock, uint64_t ns) {
  if (clock_->threaded()) {
    lock->unlock();
    std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
    lock->lock();
    return;
  }
  await(lock, {}, clock_->now_ns() + ns);
}

void Waits::join(Lock* lock, int rank) {
  if (turns_->joined()) return;
  const bool expected = turns_->expecting() && !clock_->threaded();
  turns_->join(true);
  if (!expected) return;
  Waiter waiter;
  waiter.registered = true;
  turns_->release(&waiter, rank);
  stay(lock, &waiter);
}

// A thread at work that polls lets the others go on. If all of them wait, it moves time.
CUresult Waits::query_in_turn(Lock* lock, const OpPtr& op) {
  turns_->inside(true);
  if (turns_->may_advance()) timeline_->advance_or_write(lock);
  turns_->inside(false);
  if (!turns_->any_turn()) return CUDA_ERROR_NOT_READY;
  Waiter waiter;
  waiter.ops = {op};
  waiter.registered = true;
  turns_->release(&waiter);
  stay(lock, &waiter);
  return CUDA_ERROR_NOT_READY;
}

CUresult Waits::query(Lock* lock, const OpPtr& op) {
  if (op == nullptr || op->applied) return CUDA_SUCCESS;
  if (clock_->threaded()) return CUDA_ERROR_NOT_READY;
  if (polled_) {
    const double us = books().price(static_cast<int>(Symbol::k_cuEventQuery)).first_us;
    sleep(lock, static_cast<uint64_t>(us * 1000));
  }
  if (op->timed) return applier_->apply(lock, {op});
  if (polled_ || clock_->paced()) return CUDA_ERROR_NOT_READY;
  if (turns_->joined()) return query_in_turn(lock, op);
  if (turns_->may_advance()) {
    timeline_->advance_or_write(lock);
    turns_->hand_over();
  }
  return CUDA_ERROR_NOT_READY;
}

void Waits::make_room(Lock* lock) {
  if (clock_->threaded() || applier_->applying()) return;
  if (pending_->size() < std::max(room_, kMostPending)) return;
  const OpPtr last = pending_->middle();
  const bool joined = turns_->joined();
  if (joined) turns_->inside(true);
  while (!last->timed && turns_->may_advance() && timeline_->advance(lock)) continue;
  if (joined) turns_->inside(false);
  applier_->apply_unasked(lock, pending_->timed(last->seq));
  room_ = pending_->size() + kMostPending / 2;  // the rest waits for the host
}

}  // namespace simcuda
