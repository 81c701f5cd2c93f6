// What stream work does: effects, in a seeded order, and the threads of the threaded mode.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/numbers.h"
#include "blank.h"
#include "books.h"
#include "scheduler.h"

namespace simcuda {

thread_local bool in_host_function = false;

bool Scheduler::legal(const Op& op, const Op::Side& side, bool write) {
  if (side.host) {
    if (!side.pinned || host_->pinned(side.address, side.pitch * (op.rows - 1) + op.bytes)) {
      return true;
    }
    books().violation("access to unmapped memory",
                      "a graph's copy at " + std::to_string(side.address) +
                          ": pinned host memory when it was captured, and no more",
                      now_ns());
    return false;
  }
  for (size_t row = 0; row < op.rows; ++row) {
    const CUdeviceptr at = side.address + row * side.pitch;
    if (memory_->accessible(at, op.bytes, side.device, write)) continue;
    const bool mapped =
        memory_->page_at(at) != nullptr && memory_->page_at(at + op.bytes - 1) != nullptr;
    books().violation(mapped ? "access without grant" : "access to unmapped memory",
                      std::string(write ? "write to [" : "read of [") + std::to_string(at) + ", +" +
                          std::to_string(op.bytes) + ") by " + glake::device_text(side.device),
                      now_ns());
    return false;
  }
  return true;
}

bool Scheduler::read_table(Op* op) {
  struct Block {  // as the kernel declares it
    uint64_t dst, src, bytes;
  };
  op->parts.clear();
  op->bytes = op->rows = 0;
  if (!host_->pinned(op->table, op->blocks * sizeof(Block)) && op->blocks != 0) {
    books().violation("access to unmapped memory",
                      "a kernel's table at " + std::to_string(op->table), now_ns());
    return false;
  }
  const auto* table = reinterpret_cast<const Block*>(op->table);
  for (const Block* block = table; block != table + op->blocks; ++block) {
    if (block->bytes == 0) continue;
    // Unlike a copy, a kernel reaches no pageable memory: that counts as unmapped.
    const auto side = [&](uint64_t at) {
      return Op::Side{at, 0, host_->pinned(at, block->bytes), op->device};
    };
    Op::Part part;
    part.dst = side(block->dst);
    part.src = side(block->src);
    part.bytes = block->bytes;
    op->parts.push_back(std::move(part));
    op->bytes += block->bytes;
    op->rows = 1;
  }
  return true;
}

bool Scheduler::legal(const Op& op) {
  if (!op.parts.empty()) {
    Op each;
    for (const Op::Part& part : op.parts) {
      each.bytes = part.bytes;
      if (!legal(each, part.src, false) || !legal(each, part.dst, true)) return false;
    }
    return true;
  }
  switch (op.kind) {
    case Op::Kind::kCopy:
      return legal(op, op.src, false) && legal(op, op.dst, true);
    case Op::Kind::kMemset:
    case Op::Kind::kWriteValue:
      return legal(op, op.dst, true);
    case Op::Kind::kCompute:
      return std::all_of(op.touched.begin(), op.touched.end(), [&](const Op::Touched& each) {
        Op piece;
        piece.bytes = each.bytes;
        // Pinned host memory is a kernel's to use, at the host's own address.
        const bool host = host_->pinned(each.address, each.bytes);
        return legal(piece, {each.address, 0, host, op.device}, each.write);
      });
    default:
      return true;
  }
}

bool Scheduler::satisfied(const Op& op) {
  if (phantom_ && !op.dst.host) return true;
  if (!op.dst.host && !memory_->accessible(op.dst.address, op.width, op.dst.device, false)) {
    return false;
  }
  // A host thread may be storing it: what it wrote before is seen by work after the wait.
  const uint64_t now =
      op.width == 8
          ? __atomic_load_n(reinterpret_cast<const uint64_t*>(op.dst.address), __ATOMIC_ACQUIRE)
          : __atomic_load_n(reinterpret_cast<const uint32_t*>(op.dst.address), __ATOMIC_ACQUIRE);
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

// Copies of a batch have no order among themselves: the later may come first.
void perform_parts(const Op& op, bool backwards) {
  const size_t count = op.parts.size();
  for (size_t i = 0; i < count; ++i) {
    const Op::Part& part = op.parts[backwards ? count - 1 - i : i];
    const void* from =
        part.staged.empty() ? reinterpret_cast<const void*>(part.src.address) : part.staged.data();
    std::memmove(reinterpret_cast<void*>(part.dst.address), from, part.bytes);
  }
}

// The host reads zeros where nobody computed the bytes, never what happens to be in its own memory.
void read_nothing(const Op& op) {
  const auto whole = [](const Op::Side& to, const Op::Side& from, size_t bytes, size_t rows) {
    for (size_t row = 0; to.host && !from.host && row < rows; ++row) {
      blank(reinterpret_cast<char*>(to.address) + row * to.pitch, bytes);
    }
  };
  for (const Op::Part& part : op.parts) whole(part.dst, part.src, part.bytes, 1);
  if (op.parts.empty()) whole(op.dst, op.src, op.bytes, op.rows);
}

// The bytes themselves. Phantom memory has none; of host memory values are written.
void Scheduler::perform(const Op& op) {
  if (op.covered) {
    if (op.kind == Op::Kind::kCopy) read_nothing(op);
    return;
  }
  if (phantom_ && (op.kind != Op::Kind::kWriteValue || !op.dst.host)) {
    perform_phantom(op);
    return;
  }
  if (!op.parts.empty()) {
    perform_parts(op, op.seq % 2 == 1);
    if (op.corrupt) *reinterpret_cast<char*>(op.parts[0].dst.address) ^= 1;
    return;
  }
  auto* to = reinterpret_cast<char*>(op.dst.address);
  switch (op.kind) {
    case Op::Kind::kCopy: {
      const char* from =
          op.staged.empty() ? reinterpret_cast<const char*>(op.src.address) : op.staged.data();
      const size_t pitch = op.staged.empty() ? op.src.pitch : op.bytes;
      for (size_t row = 0; row < op.rows; ++row) {
        std::memmove(to + row * op.dst.pitch, from + row * pitch, op.bytes);
      }
      if (op.corrupt) *to ^= 1;
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
      if (op.width == 8) {
        __atomic_store_n(reinterpret_cast<uint64_t*>(to), op.value, __ATOMIC_RELEASE);
      } else {
        __atomic_store_n(reinterpret_cast<uint32_t*>(to), static_cast<uint32_t>(op.value),
                         __ATOMIC_RELEASE);
      }
      break;
    default:
      break;
  }
}

void Scheduler::land(const Op& op) {
  for (const Op::Part& part : op.parts) landings.land(part.dst.address, part.bytes);
  for (size_t row = 0; op.parts.empty() && row < op.rows; ++row) {
    landings.land(op.dst.address + row * op.dst.pitch, op.bytes);
  }
}

// Outside of the mutex. A computed kernel says how it ended; a host function cannot.
static CUresult call_function(const Op& op) {
  int result = CUDA_SUCCESS;
  in_host_function = true;
  if (op.kind == Op::Kind::kCompute) {
    result = op.compute(op.data);
  } else {
    op.function(op.data);
  }
  in_host_function = false;
  return static_cast<CUresult>(result);
}

CUresult Scheduler::lost(int device) const {
  const CUresult error = device < 0 ? CUDA_SUCCESS : lost_[static_cast<size_t>(device)];
  if (error == CUDA_SUCCESS) return error;
  return fail(error, "the context is lost to an earlier error of its work (option sticky_errors)");
}

void Scheduler::meet_lost(Op* op) {
  const CUresult error = op->device < 0 ? CUDA_SUCCESS : lost_[static_cast<size_t>(op->device)];
  if (error != CUDA_SUCCESS && op->fault == CUDA_SUCCESS) op->fault = error;
}

void Scheduler::lose(const Op& op, CUresult error) {
  if (!sticky_ || op.device < 0 || error == CUDA_SUCCESS) return;
  CUresult& lost = lost_[static_cast<size_t>(op.device)];
  if (lost == CUDA_SUCCESS) lost = error;
}

void Scheduler::mark_applied(const OpPtr& op) {
  lose(*op, op->fault);
  op->applied = true;
  if (op->landed) land(*op);
  for (const OpPtr& next : op->dependents) --next->unapplied_deps;
  op->deps.clear();
  op->dependents.clear();
  op->keep.reset();
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
    meet_lost(op.get());
    if (op->fault != CUDA_SUCCESS) {
      // It lands nothing.
    } else if ((op->table != 0 && !read_table(op.get())) || !legal(*op)) {
      error_ = CUDA_ERROR_ILLEGAL_ADDRESS;
      lose(*op, error_);
    } else if (op->kind == Op::Kind::kHostFunction || op->kind == Op::Kind::kCompute) {
      ++functions_;  // the clock stands still meanwhile
      busy(true);
      lock->unlock();
      const CUresult result = call_function(*op);
      lock->lock();
      --functions_;
      busy(false);
      if (result != CUDA_SUCCESS) error_ = result;
    } else {
      perform(*op);
      op->landed = op->kind == Op::Kind::kCopy;
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
  return fail(result, result == CUDA_ERROR_ILLEGAL_ADDRESS
                          ? "stream work touched memory it may not: see simcuda_violations"
                          : "a computed kernel failed");
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
    hold_up(&lock, op.get());
    meet_lost(op.get());
    const bool faulty = op->fault != CUDA_SUCCESS;
    const bool readable = faulty || op->table == 0 || read_table(op.get());
    const bool fine = faulty || (readable && legal(*op));
    if (!fine) {
      error_ = CUDA_ERROR_ILLEGAL_ADDRESS;
      lose(*op, error_);
    }
    CUresult result = CUDA_SUCCESS;
    lock.unlock();
    if (faulty) {
      // It lands nothing.
    } else if (op->kind == Op::Kind::kHostFunction) {
      call_function(*op);
    } else if (fine && op->kind == Op::Kind::kCompute) {
      result = call_function(*op);
    } else if (fine) {
      perform(*op);
      op->landed = op->kind == Op::Kind::kCopy;
    }
    lock.lock();
    if (result != CUDA_SUCCESS) error_ = result;
    op->timed = true;
    op->end_ns = now_ns();
    mark_applied(op);
    changed_.notify_all();
  }
}

// Stalls and dead links, in real time: the threaded mode has no other.
void Scheduler::hold_up(Lock* lock, Op* op) {
  if (op->kind != Op::Kind::kCopy) return;
  const uint64_t start = now_ns();
  while (!stopping_ && now_ns() - start < op->stall_ns) {
    changed_.wait_for(*lock, std::chrono::microseconds(200));
  }
  for (links.change(now_ns()); links.dead(op->route) && !stopping_; links.change(now_ns())) {
    if (links.dead_code() != CUDA_SUCCESS) {
      op->fault = links.dead_code();
      return;
    }
    changed_.wait_for(*lock, std::chrono::microseconds(200));
  }
}

void Scheduler::stop() {
  if (mutex_ == nullptr) return;  // never started
  {
    Lock lock(*mutex_);
    stopping_ = true;
    changed_.notify_all();
    for (Waiter* waiter : waiters_) waiter->wake.notify_one();
  }
  work_.notify_all();
  if (timekeeper_.joinable()) timekeeper_.join();
  for (auto& [stream, worker] : workers_) worker->thread.join();
  // Cut the links first: a long chain must not be destroyed recursively.
  for (auto& [seq, op] : pending_) {
    op->deps.clear();
    op->dependents.clear();
  }
}

}  // namespace simcuda
