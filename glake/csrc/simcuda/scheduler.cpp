// The virtual clock: when stream work starts and ends.
#include "scheduler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>

#include "books.h"

namespace simcuda {
namespace {

constexpr std::chrono::milliseconds kStall{200};

// The life of the scheduler this thread is registered with; 0: none.
thread_local uint64_t registered_with = 0;
std::atomic<uint64_t> lives{0};

uint64_t wall_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

void Scheduler::start(const Options& options, std::mutex* mutex, Topology* topology, Memory* memory,
                      Streams* streams) {
  mutex_ = mutex;
  topology_ = topology;
  memory_ = memory;
  streams_ = streams;
  phantom_ = options.phantom;
  threaded_ = options.threaded;
  random_.seed(options.seed);
  epoch_ns_ = wall_ns();
  life_ = ++lives;
}

bool Scheduler::registered_here() const { return registered_with == life_; }

uint64_t Scheduler::now_ns() const { return threaded_ ? wall_ns() - epoch_ns_ : now_ns_; }

void Scheduler::register_thread(bool join) {
  if (join == registered_here()) return;
  registered_with = join ? life_ : 0;
  registered_ += join ? 1 : -1;
  changed_.notify_all();
}

void Scheduler::enqueue(Stream* stream, const OpPtr& op, const OpPtr& also) {
  op->device = stream->device;
  op->seq = ++sequence_;
  const auto depend = [&](const OpPtr& dep) {
    if (dep == nullptr || dep->applied) return;
    if (std::find(op->deps.begin(), op->deps.end(), dep) != op->deps.end()) return;
    op->deps.push_back(dep);
    dep->dependents.push_back(op);
    ++op->unapplied_deps;
    if (!dep->timed) ++op->untimed_deps;
  };
  depend(stream->tail);
  depend(also);
  // The legacy stream waits for all blocking streams of its context, and they for it.
  if (stream->legacy) {
    streams_->streams.for_each([&](uint64_t, Stream& other) {
      if (other.context == stream->context && !other.non_blocking()) depend(other.tail);
    });
  } else if (!stream->non_blocking()) {
    Stream* legacy = streams_->legacy_of(stream->context);
    if (legacy != nullptr) depend(legacy->tail);
  }
  stream->tail = op;
  pending_[op->seq] = op;
  if (op->kind == Op::Kind::kCopy || op->kind == Op::Kind::kMemset ||
      op->kind == Op::Kind::kWriteValue) {
    touching_[op->seq] = op.get();
  }
  if (threaded_) {
    std::unique_ptr<Worker>& worker = workers_[stream->id];
    if (worker == nullptr) {
      worker = std::make_unique<Worker>();
      worker->thread = std::thread([this, at = worker.get()] { work(at); });
    }
    worker->queue.push_back(op);
  } else if (op->untimed_deps == 0) {
    ready_.push_back(op);
  }
  changed_.notify_all();
}

void Scheduler::begin(const OpPtr& op) {
  if (op->kind == Op::Kind::kWaitValue) {
    value_waiters_.push_back(op);
  } else if (op->latency_ns == 0 && op->route.empty()) {
    finish(op);
  } else {
    op->latency_end_ns = now_ns_ + op->latency_ns;
    op->remaining = static_cast<double>(op->bytes) * static_cast<double>(op->rows);
    running_.push_back(op);
  }
}

void Scheduler::finish(const OpPtr& op) {
  op->timed = true;
  op->end_ns = now_ns_;
  for (const OpPtr& next : op->dependents) {
    if (--next->untimed_deps == 0) ready_.push_back(next);
  }
}

bool Scheduler::start_ready() {
  bool any = false;
  while (!ready_.empty()) {
    const OpPtr op = ready_.front();
    ready_.pop_front();
    begin(op);
    any = any || op->timed;
  }
  return any;
}

bool Scheduler::poll_waiters() {
  bool any = false;
  for (size_t i = 0; i < value_waiters_.size();) {
    if (!satisfied(*value_waiters_[i])) {
      ++i;
      continue;
    }
    const OpPtr op = value_waiters_[i];
    value_waiters_.erase(value_waiters_.begin() + static_cast<std::ptrdiff_t>(i));
    finish(op);
    any = true;
  }
  return any;
}

// Moves to the next completion. Work that takes no time completes before the clock moves.
bool Scheduler::advance() {
  if (start_ready() || poll_waiters()) return true;
  while (!running_.empty()) {
    std::vector<const Route*> routes;
    std::vector<Op*> flowing;
    for (const OpPtr& op : running_) {
      if (op->latency_end_ns > now_ns_ || op->remaining <= 0) continue;
      flowing.push_back(op.get());
      routes.push_back(&op->route);
    }
    const std::vector<double> rates = topology_->rates(routes);
    uint64_t step = UINT64_MAX;
    for (const OpPtr& op : running_) {
      if (op->latency_end_ns > now_ns_) step = std::min(step, op->latency_end_ns - now_ns_);
    }
    for (size_t i = 0; i < flowing.size(); ++i) {
      const double left = std::ceil(flowing[i]->remaining / rates[i]);
      step = std::min(step, std::max<uint64_t>(1, static_cast<uint64_t>(left)));
    }
    if (step == UINT64_MAX) step = 0;
    now_ns_ += step;
    for (size_t i = 0; i < flowing.size(); ++i) {
      flowing[i]->remaining -= rates[i] * static_cast<double>(step);
    }
    std::vector<OpPtr> done;
    for (size_t i = 0; i < running_.size();) {
      const OpPtr& op = running_[i];
      const bool over = op->latency_end_ns <= now_ns_ && (op->route.empty() || op->remaining <= 0);
      if (over) done.push_back(op);
      i += !over;
      if (over) running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (const OpPtr& op : done) finish(op);
    if (!done.empty()) return true;
  }
  return false;
}

// Registered threads hold time still until each of them waits here.
bool Scheduler::may_advance() const { return waiting_ >= registered_; }

// A registered thread may be blocked outside the driver by one that waits in it (on a lock, say).
// When nothing has come in for a while of real time, time moves on without it.
bool Scheduler::stalled() {
  auto now = std::chrono::steady_clock::now();
  if (sequence_ != stall_sequence_ || now_ns_ != stall_ns_) {
    stall_sequence_ = sequence_;
    stall_ns_ = now_ns_;
    stall_since_ = now;
  }
  return now - stall_since_ > kStall;
}

// One step of a blocking call. Returns whether anything moved without letting go of the lock.
bool Scheduler::wait_for_progress(Lock* lock) {
  if (may_advance() || stalled()) {
    if (advance()) {
      changed_.notify_all();
      return true;
    }
    // Only a value somebody writes can help: make the writes that are due, then look again.
    apply_timed(lock);
    if (poll_waiters()) return true;
  }
  changed_.wait_for(*lock, std::chrono::milliseconds(1));
  return false;
}

CUresult Scheduler::wait(Lock* lock, const OpPtr& op) {
  if (op == nullptr || op->applied) return CUDA_SUCCESS;
  if (threaded_) return wait_threaded(lock, op);
  if (registered_here()) ++waiting_;
  while (!op->timed && !stopping_) wait_for_progress(lock);
  if (registered_here()) --waiting_;
  return apply(lock, {op});
}

CUresult Scheduler::wait_device(Lock* lock, int device) {
  CUresult result = CUDA_SUCCESS;
  std::vector<OpPtr> targets;
  for (const auto& [seq, op] : pending_) {
    if (device < 0 || op->device == device) targets.push_back(op);
  }
  if (registered_here()) ++waiting_;
  for (const OpPtr& op : targets) {
    if (threaded_) {
      result = wait_threaded(lock, op);
      continue;
    }
    while (!op->timed && !stopping_) wait_for_progress(lock);
  }
  if (registered_here()) --waiting_;
  return threaded_ ? result : apply(lock, targets);
}

CUresult Scheduler::query(Lock* lock, const OpPtr& op) {
  if (op == nullptr || op->applied) return CUDA_SUCCESS;
  if (threaded_) return CUDA_ERROR_NOT_READY;
  if (op->timed) return apply(lock, {op});
  if (registered_here()) ++waiting_;
  if (may_advance() && !advance()) {
    apply_timed(lock);
    poll_waiters();
  }
  if (registered_here()) --waiting_;
  return CUDA_ERROR_NOT_READY;
}

void Scheduler::check_idle(CUdeviceptr address, size_t bytes, const char* what) {
  const auto overlaps = [&](const Op::Side& side, const Op& op) {
    const size_t span = side.pitch * (op.rows - 1) + op.bytes;
    return !side.host && side.address < address + bytes && address < side.address + span;
  };
  for (const auto& [seq, op] : touching_) {
    if (!overlaps(op->dst, *op) && (op->kind != Op::Kind::kCopy || !overlaps(op->src, *op))) {
      continue;
    }
    books().violation(what,
                      "work " + std::to_string(seq) + " on device " + std::to_string(op->device) +
                          " is pending on [" + std::to_string(address) + ", +" +
                          std::to_string(bytes) + ")",
                      now_ns());
  }
}

}  // namespace simcuda
