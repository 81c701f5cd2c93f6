// Stream work where the clock goes on by itself and the links are all processes' (shared_links.h).
#include <algorithm>

#include "scheduler.h"

namespace simcuda {
namespace {

// Real time between two looks: at words that the host writes, and for others' copies that end and
// leave ours more of a link.
constexpr std::chrono::nanoseconds kPacedLook{5'000'000}, kPacedShortest{20'000};

}  // namespace

// Work that begins now.
void Scheduler::enter(const OpPtr& op) {
  if (op->route.empty() || op->remaining <= 0) return;
  op->shared = shared_->enter(op->route, op->latency_end_ns, op->remaining);
  if (op->shared >= 0) return;
  // Thousands of copies at once: this one fails, rather than pass links that do not know of it.
  op->fault = CUDA_ERROR_UNKNOWN;
  op->remaining = 0;
}

// Whether it has ended by now.
bool Scheduler::take_over(Op* op) {
  if (op->shared < 0) return op->latency_end_ns <= now_ns_;
  uint64_t end = 0;
  if (!shared_->over(op->shared, now_ns_, &end)) return false;
  op->shared = -1;
  const std::vector<double> rates(1, op->remaining);
  links.carry({op}, rates, 1);
  op->remaining = 0;
  return true;
}

// Does what is due; false: nothing was.
bool Scheduler::tick(Lock* lock) {
  now_ns_ = std::max(now_ns_, shared_->now_ns());
  bool any = start_ready() || run_prompt(lock) || poll_waiters();
  std::vector<OpPtr> done;
  const auto ended = [&](const OpPtr& op) {
    if (!take_over(op.get())) return false;
    done.push_back(op);
    return true;
  };
  running_.erase(std::remove_if(running_.begin(), running_.end(), ended), running_.end());
  for (const OpPtr& op : done) finish(op);
  any = start_ready() || any || !done.empty();
  if (running_.empty() && !value_waiters_.empty()) apply_timed(lock);
  return reach_deadlines() || any;
}

// In real time.
std::chrono::nanoseconds Scheduler::rest() {
  const uint64_t now = shared_->now_ns();
  uint64_t next = next_deadline();
  if (!running_.empty()) next = std::min(next, shared_->next_ns());
  for (const OpPtr& op : running_) {
    if (op->shared < 0) next = std::min(next, op->latency_end_ns);
  }
  if (next <= now) return kPacedShortest;
  if (next - now > 1'000'000'000) return kPacedLook;
  return std::clamp(std::chrono::nanoseconds(shared_->real_ns(next - now)), kPacedShortest,
                    kPacedLook);
}

// Work that waits for other work begins though nobody waits for either.
void Scheduler::keep_time() {
  Lock lock(*mutex_);
  while (!stopping_) {
    tick(&lock);
    const auto idle = [&] { return pending_.empty() && waiters_.empty(); };
    if (idle()) {
      work_.wait(lock, [&] { return stopping_ || !idle(); });
    } else {
      work_.wait_for(lock, rest());
    }
  }
}

}  // namespace simcuda
