// What stream work does: effects, in a seeded order, and the threads of the threaded mode.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "books.h"
#include "scheduler.h"

namespace simcuda {

thread_local bool in_host_function = false;

bool Scheduler::legal(const Op& op, const Op::Side& side, bool write) {
  if (side.host) return true;
  for (size_t row = 0; row < op.rows; ++row) {
    const CUdeviceptr at = side.address + row * side.pitch;
    if (memory_->accessible(at, op.bytes, side.device, write)) continue;
    const bool mapped =
        memory_->page_at(at) != nullptr && memory_->page_at(at + op.bytes - 1) != nullptr;
    books().violation(mapped ? "access without grant" : "access to unmapped memory",
                      std::string(write ? "write to [" : "read of [") + std::to_string(at) + ", +" +
                          std::to_string(op.bytes) + ") by device " + std::to_string(side.device),
                      now_ns());
    return false;
  }
  return true;
}

bool Scheduler::legal(const Op& op) {
  switch (op.kind) {
    case Op::Kind::kCopy:
      return legal(op, op.src, false) && legal(op, op.dst, true);
    case Op::Kind::kMemset:
    case Op::Kind::kWriteValue:
      return legal(op, op.dst, true);
    default:
      return true;
  }
}

bool Scheduler::satisfied(const Op& op) {
  if (phantom_) return true;
  if (!op.dst.host && !memory_->accessible(op.dst.address, op.width, op.dst.device, false)) {
    return false;
  }
  uint64_t now = 0;
  std::memcpy(&now, reinterpret_cast<const void*>(op.dst.address), op.width);
  const uint64_t mask = op.width == 8 ? UINT64_MAX : 0xffffffffu;
  switch (op.flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return op.width == 8 ? static_cast<int64_t>(now - op.value) >= 0
                           : static_cast<int32_t>(now - op.value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == op.value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & op.value) != 0;
    default:
      return (~(now | op.value) & mask) != 0;
  }
}

// The bytes themselves. Phantom memory has none.
void Scheduler::perform(const Op& op) {
  if (phantom_) return;
  auto* to = reinterpret_cast<char*>(op.dst.address);
  switch (op.kind) {
    case Op::Kind::kCopy: {
      const char* from =
          op.staged.empty() ? reinterpret_cast<const char*>(op.src.address) : op.staged.data();
      const size_t pitch = op.staged.empty() ? op.src.pitch : op.bytes;
      for (size_t row = 0; row < op.rows; ++row) {
        std::memmove(to + row * op.dst.pitch, from + row * pitch, op.bytes);
      }
      break;
    }
    case Op::Kind::kMemset:
      if (op.width == 1) {
        std::memset(to, static_cast<int>(op.value), op.bytes);
        break;
      }
      for (size_t i = 0; i < op.bytes; i += op.width) std::memcpy(to + i, &op.value, op.width);
      break;
    case Op::Kind::kWriteValue:
      std::memcpy(to, &op.value, op.width);
      break;
    default:
      break;
  }
}

void Scheduler::mark_applied(const OpPtr& op) {
  op->applied = true;
  for (const OpPtr& next : op->dependents) --next->unapplied_deps;
  op->deps.clear();
  op->dependents.clear();
  pending_.erase(op->seq);
  touching_.erase(op->seq);
}

CUresult Scheduler::apply(Lock* lock, const std::vector<OpPtr>& targets) {
  changed_.wait(*lock, [&] { return !applying_ || stopping_; });
  if (stopping_) return CUDA_ERROR_DEINITIALIZED;
  // All that must precede the targets. Every one of them is timed, as the targets are.
  const uint64_t mark = ++marks_;
  std::vector<OpPtr> closure, ready;
  const auto visit = [&](const OpPtr& op) {
    if (op->applied || op->mark == mark) return;
    op->mark = mark;
    closure.push_back(op);
  };
  for (const OpPtr& op : targets) visit(op);
  for (size_t i = 0; i < closure.size(); ++i) {
    const OpPtr op = closure[i];
    for (const OpPtr& dep : op->deps) visit(dep);
    if (op->unapplied_deps == 0) ready.push_back(op);
  }
  applying_ = true;
  while (!ready.empty()) {
    // Any order that keeps dependencies is legal; the seed picks one.
    const size_t pick = static_cast<size_t>(random_() % ready.size());
    const OpPtr op = ready[pick];
    ready[pick] = ready.back();
    ready.pop_back();
    if (!legal(*op)) {
      error_ = CUDA_ERROR_ILLEGAL_ADDRESS;
    } else if (op->kind == Op::Kind::kHostFunction) {
      lock->unlock();
      in_host_function = true;
      op->function(op->data);
      in_host_function = false;
      lock->lock();
    } else {
      perform(*op);
    }
    const std::vector<OpPtr> dependents = op->dependents;
    mark_applied(op);
    for (const OpPtr& next : dependents) {
      if (next->mark == mark && next->unapplied_deps == 0) ready.push_back(next);
    }
  }
  applying_ = false;
  changed_.notify_all();
  const CUresult result = std::exchange(error_, CUDA_SUCCESS);
  if (result == CUDA_SUCCESS) return result;
  return fail(result, "stream work touched memory it may not: see simcuda_violations");
}

void Scheduler::apply_timed(Lock* lock) {
  std::vector<OpPtr> targets;
  for (const auto& [seq, op] : pending_) {
    if (op->timed) targets.push_back(op);
  }
  if (targets.empty()) return;
  const CUresult result = apply(lock, targets);
  if (result != CUDA_SUCCESS) error_ = result;  // for the call that asks about this work
}

void Scheduler::work(Worker* worker) {
  Lock lock(*mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return stopping_ || (!worker->queue.empty() && worker->queue.front()->unapplied_deps == 0);
    });
    if (stopping_) return;
    const OpPtr op = worker->queue.front();
    worker->queue.pop_front();
    while (op->kind == Op::Kind::kWaitValue && !satisfied(*op) && !stopping_) {
      changed_.wait_for(lock, std::chrono::microseconds(200));
    }
    const bool fine = legal(*op);
    if (!fine) error_ = CUDA_ERROR_ILLEGAL_ADDRESS;
    lock.unlock();
    if (op->kind == Op::Kind::kHostFunction) {
      in_host_function = true;
      op->function(op->data);
      in_host_function = false;
    } else if (fine) {
      perform(*op);
    }
    lock.lock();
    op->timed = true;
    op->end_ns = now_ns();
    mark_applied(op);
    changed_.notify_all();
  }
}

CUresult Scheduler::wait_threaded(Lock* lock, const OpPtr& op) {
  changed_.wait(*lock, [&] { return op->applied || stopping_; });
  return std::exchange(error_, CUDA_SUCCESS);
}

void Scheduler::stop() {
  if (mutex_ == nullptr) return;  // never started
  {
    Lock lock(*mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (auto& [stream, worker] : workers_) worker->thread.join();
  // Cut the links first: a long chain must not be destroyed recursively.
  for (auto& [seq, op] : pending_) {
    op->deps.clear();
    op->dependents.clear();
  }
}

}  // namespace simcuda
