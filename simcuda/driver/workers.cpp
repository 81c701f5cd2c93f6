#include "workers.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace simcuda {
namespace {

// The real time between two looks at words that the host writes, and at links.
constexpr std::chrono::microseconds kWorkerLook{200};

}  // namespace

void Workers::enqueue(uint64_t stream, const OpPtr& op) {
  WorkerPtr& worker = workers_[stream];
  if (worker == nullptr) worker = idle_or_new();
  worker->queue.push_back(op);
  notify();
}

Workers::WorkerPtr Workers::idle_or_new() {
  const auto idle =
      std::find_if(streamless_.begin(), streamless_.end(),
                   [](const WorkerPtr& worker) { return worker->queue.empty() && !worker->busy; });
  WorkerPtr worker;
  if (idle != streamless_.end()) {
    worker = std::move(*idle);
    streamless_.erase(idle);
    return worker;
  }
  worker = std::make_unique<Worker>();
  worker->thread = std::thread([this, at = worker.get()] { work(at); });
  return worker;
}

void Workers::forget(uint64_t stream) {
  const auto found = workers_.find(stream);
  if (found == workers_.end()) return;
  streamless_.push_back(std::move(found->second));
  workers_.erase(found);
}

void Workers::work(Worker* worker) {
  Lock lock(*mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return stopping_ || (!worker->queue.empty() && worker->queue.front()->unapplied_deps == 0);
    });
    if (stopping_) return;
    const OpPtr op = worker->queue.front();
    worker->queue.pop_front();
    worker->busy = true;
    while (op->kind == Op::Kind::kWaitValue && !effects_->satisfied(*op) && !stopping_) {
      changed_.wait_for(lock, kWorkerLook);
    }
    hold_up(&lock, op.get());
    run(&lock, op.get());
    op->timed = true;
    op->end_ns = clock_->now_ns();
    effects_->conclude(*op);
    pending_->remove(op);
    worker->busy = false;
    notify();
  }
}

void Workers::run(Lock* lock, Op* op) {
  const Effects::Verdict verdict = effects_->judge(op);
  CUresult result = CUDA_SUCCESS;
  lock->unlock();
  if (verdict == Effects::Verdict::kIllegal) {
    result = CUDA_ERROR_ILLEGAL_ADDRESS;
  } else if (verdict == Effects::Verdict::kRuns && is_function(*op)) {
    result = call_function(*op);
  } else if (verdict == Effects::Verdict::kRuns) {
    effects_->perform(op);
  }
  lock->lock();
  if (result != CUDA_SUCCESS) error_ = result;
}

// Holds a copy up for a stall or a dead link. It does so in real time, because there is no other
// time here.
void Workers::hold_up(Lock* lock, Op* op) {
  if (op->kind != Op::Kind::kCopy) return;
  const uint64_t start = clock_->now_ns();
  while (!stopping_ && clock_->now_ns() - start < op->stall_ns) {
    changed_.wait_for(*lock, kWorkerLook);
  }
  for (links_->change(clock_->now_ns()); links_->dead(op->route) && !stopping_;
       links_->change(clock_->now_ns())) {
    if (links_->dead_code() != CUDA_SUCCESS) {
      op->fault = links_->dead_code();
      return;
    }
    changed_.wait_for(*lock, kWorkerLook);
  }
}

CUresult Workers::wait(Lock* lock, const std::vector<OpPtr>& ops, uint64_t deadline_ns) {
  const auto over = [&] {
    return stopping_ ||
           std::any_of(ops.begin(), ops.end(), [](const OpPtr& op) { return op->applied; });
  };
  if (deadline_ns == UINT64_MAX) {
    changed_.wait(*lock, over);
  } else {
    while (!over() && clock_->now_ns() < deadline_ns) {
      const uint64_t left = std::min<uint64_t>(deadline_ns - clock_->now_ns(), 1'000'000'000);
      changed_.wait_for(*lock, std::chrono::nanoseconds(left), over);
    }
    if (!over()) return CUDA_ERROR_NOT_READY;
  }
  return std::exchange(error_, CUDA_SUCCESS);
}

void Workers::await_end(Lock* lock, const OpPtr& op) {
  changed_.wait(*lock, [&] { return op->timed || op->applied || stopping_; });
}

void Workers::stop() {
  {
    const Lock lock(*mutex_);
    stopping_ = true;
  }
  notify();
  for (auto& [stream, worker] : workers_) worker->thread.join();
  for (const WorkerPtr& worker : streamless_) worker->thread.join();
}

}  // namespace simcuda
