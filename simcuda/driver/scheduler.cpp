// The virtual clock: when stream work starts and ends.
#include "scheduler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>

#include "base/numbers.h"
#include "books.h"

namespace simcuda {
namespace {

std::atomic<uint64_t> lives{0};

uint64_t wall_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// Whether work writes into the word a stream waits for, at the address it is waited for at.
bool writes_word(const Op& op, const Op& word) {
  const auto meets = [&](const Op::Side& side, size_t span) {
    return side.address < word.dst.address + word.width && word.dst.address < side.address + span;
  };
  if (op.kind != Op::Kind::kCopy && op.kind != Op::Kind::kMemset &&
      op.kind != Op::Kind::kWriteValue) {
    return false;
  }
  if (op.parts.empty()) return meets(op.dst, op.dst.pitch * (op.rows - 1) + op.bytes);
  return std::any_of(op.parts.begin(), op.parts.end(),
                     [&](const Op::Part& part) { return meets(part.dst, part.bytes); });
}

}  // namespace

CUresult tell_faults(const std::vector<OpPtr>& copies, bool again) {
  CUresult found = CUDA_SUCCESS;
  for (const OpPtr& op : copies) {
    if (op->fault == CUDA_SUCCESS || !op->applied || (op->told && !again)) continue;
    op->told = true;
    if (found == CUDA_SUCCESS) found = op->fault;
  }
  if (found == CUDA_SUCCESS) return found;
  return fail(found, "a copy was told to end so (simcuda_fail_copy, or a dead link)");
}

void Scheduler::start(const Options& options, std::mutex* mutex, Topology* topology, Memory* memory,
                      const HostMemory* host, Streams* streams,
                      std::unique_ptr<SharedLinks> shared) {
  mutex_ = mutex;
  topology_ = topology;
  memory_ = memory;
  host_ = host;
  streams_ = streams;
  phantom_ = options.phantom;
  threaded_ = options.threaded;
  polled_ = options.polled;
  sticky_ = options.sticky_errors;
  lost_ = {};
  random_.seed(options.seed);
  epoch_ns_ = wall_ns();
  life_ = ++lives;
  links.start(topology);
  landings = {};
  shared_ = std::move(shared);
  if (paced()) {
    now_ns_ = shared_->now_ns();
    timekeeper_ = std::thread([this] { keep_time(); });
  }
}

uint64_t Scheduler::now_ns() const {
  if (paced()) return shared_->now_ns();
  return threaded_ ? wall_ns() - epoch_ns_ : now_ns_;
}

// Of an event: the copies of its stream since the event before it. Finished ones without a fault
// are of no interest.
static void remember(std::vector<OpPtr>* copies, const OpPtr& op) {
  constexpr size_t kMany = 64;
  if (copies->size() >= kMany && copies->size() == copies->capacity()) {
    copies->erase(std::remove_if(copies->begin(), copies->end(),
                                 [](const OpPtr& each) {
                                   return each->applied && each->fault == CUDA_SUCCESS;
                                 }),
                  copies->end());
  }
  copies->push_back(op);
}

// Rates are those of the links from now on: copies under way have moved what they have by now.
void Scheduler::links_changed() {
  links.change(now_ns());
  changed_.notify_all();
  if (nobody_at_work()) hand_over();
}

static void depend(const OpPtr& op, const OpPtr& dep) {
  if (dep == nullptr || dep->applied) return;
  if (std::find(op->deps.begin(), op->deps.end(), dep) != op->deps.end()) return;
  op->deps.push_back(dep);
  dep->dependents.push_back(op);
  ++op->unapplied_deps;
  if (!dep->timed) ++op->untimed_deps;
}

void Scheduler::enqueue(Stream* stream, const OpPtr& op, const OpPtr& also) {
  op->device = stream->device;
  depend(op, stream->tail);
  depend(op, also);
  // The legacy stream waits for all blocking streams of its context, and they for it.
  if (stream->legacy) {
    streams_->streams.for_each([&](uint64_t, Stream& other) {
      if (other.context == stream->context && !other.non_blocking()) depend(op, other.tail);
    });
  } else if (!stream->non_blocking()) {
    Stream* legacy = streams_->legacy_of(stream->context);
    if (legacy != nullptr) depend(op, legacy->tail);
  }
  stream->tail = op;
  admit(stream, op);
}

OpPtr Scheduler::enqueue_graph(Stream* stream, const std::vector<Ordered>& work,
                               const OpPtr& also) {
  const auto first = std::make_shared<Op>(), last = std::make_shared<Op>();
  enqueue(stream, first, also);
  std::vector<char> followed(work.size(), 0);
  for (const Ordered& each : work) {
    if (each.after->empty()) depend(each.op, first);
    for (const uint32_t before : *each.after) {
      depend(each.op, work[before].op);
      followed[before] = 1;
    }
    depend(each.op, each.also);
    admit(stream, each.op);
  }
  for (size_t i = 0; i < work.size(); ++i) {
    if (followed[i] == 0) depend(last, work[i].op);
  }
  enqueue(stream, last);
  return last;
}

// Work whose dependencies are known is on its way.
void Scheduler::admit(Stream* stream, const OpPtr& op) {
  op->seq = ++sequence_;
  if (phantom_) {
    foreseen.enqueue(*op);
    op->followed = {};
  }
  if (op->kind == Op::Kind::kCopy) {
    links.meet(op.get());
    remember(&stream->unmarked, op);
    remember(&stream->unasked, op);
  }
  pending_[op->seq] = op;
  if (op->kind == Op::Kind::kCopy || op->kind == Op::Kind::kMemset ||
      op->kind == Op::Kind::kWriteValue || op->kind == Op::Kind::kCompute) {
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
  if (paced()) work_.notify_one();
  if (threaded_) {
    changed_.notify_all();
  } else if (nobody_at_work()) {
    hand_over();
  }
}

void Scheduler::begin(const OpPtr& op) {
  if (op->kind == Op::Kind::kWaitValue) {
    value_waiters_.push_back(op);
    for (const auto& [seq, other] : touching_) {
      if (other->timed && writes_word(*other, *op)) prompt_.push_back(pending_[seq]);
    }
  } else if (op->latency_ns + op->stall_ns == 0 && op->route.empty()) {
    finish(op);
  } else {
    op->latency_end_ns = now_ns_ + op->latency_ns + op->stall_ns;
    op->remaining = static_cast<double>(op->bytes) * static_cast<double>(op->rows);
    if (op->fault != CUDA_SUCCESS) op->remaining = 0;
    if (paced()) enter(op);
    running_.push_back(op);
  }
}

void Scheduler::finish(const OpPtr& op) {
  op->timed = true;
  op->end_ns = now_ns_;
  for (const OpPtr& next : op->dependents) {
    if (--next->untimed_deps == 0) ready_.push_back(next);
  }
  // What the host would notice at once is made before time moves; the rest as late as is legal.
  const bool awaited = std::any_of(value_waiters_.begin(), value_waiters_.end(),
                                   [&](const OpPtr& word) { return writes_word(*op, *word); });
  if (op->kind == Op::Kind::kHostFunction || awaited) prompt_.push_back(op);
  for (Waiter* waiter : waiters_) {
    const auto& ops = waiter->ops;
    if (std::find(ops.begin(), ops.end(), op) != ops.end()) release(waiter, INT64_MAX);
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

// Host functions, and writes to words that streams wait for.
bool Scheduler::run_prompt(Lock* lock) {
  if (prompt_.empty()) return false;
  const std::vector<OpPtr> targets = std::exchange(prompt_, {});
  const CUresult result = apply(lock, targets);
  if (result != CUDA_SUCCESS) error_ = result;  // for the call that asks about this work
  return true;
}

bool Scheduler::over(const Op& op) const {
  return op.latency_end_ns <= now_ns_ && (op.route.empty() || op.remaining <= 0);
}

std::vector<Op*> Scheduler::flowing() {
  std::vector<Op*> flows;
  for (const OpPtr& op : running_) {
    if (op->latency_end_ns > now_ns_ || op->remaining <= 0 || op->route.empty()) continue;
    if (links.dead_code() != CUDA_SUCCESS && links.dead(op->route)) {
      op->fault = links.dead_code();
      op->remaining = 0;
      continue;
    }
    flows.push_back(op.get());
  }
  return flows;
}

// UINT64_MAX: nothing will happen.
uint64_t Scheduler::next_moment(const std::vector<Op*>& flows,
                                const std::vector<double>& rates) const {
  uint64_t next = next_deadline();
  for (const OpPtr& op : running_) {
    if (op->latency_end_ns > now_ns_) next = std::min(next, op->latency_end_ns);
    if (over(*op)) next = now_ns_;
  }
  for (size_t i = 0; i < flows.size(); ++i) {
    const double left = std::ceil(flows[i]->remaining / rates[i]);
    if (!(left < 1e18)) continue;  // it stands still
    next = std::min(next, now_ns_ + std::max<uint64_t>(1, static_cast<uint64_t>(left)));
  }
  return running_.empty() ? next : std::min(next, links.next_change());
}

std::vector<OpPtr> Scheduler::take_done() {
  std::vector<OpPtr> done;
  const auto ended = [&](const OpPtr& op) {
    if (over(*op)) done.push_back(op);
    return over(*op);
  };
  running_.erase(std::remove_if(running_.begin(), running_.end(), ended), running_.end());
  return done;
}

// Moves to the next completion or deadline. What takes no time happens before the clock moves.
bool Scheduler::advance(Lock* lock) {
  if (paced()) return tick(lock);
  // A word is read after the writes to it that are over, not before.
  if (start_ready() || run_prompt(lock) || poll_waiters()) return true;
  if (deadline_due()) return false;  // whoever waited for this moment goes on first
  while (true) {
    links.change(now_ns_);
    if (running_.empty() && !value_waiters_.empty()) {
      // Only a value somebody writes can help: make the writes that are due, then look again.
      const bool idle = nobody_at_work();
      apply_timed(lock);
      if (poll_waiters() || start_ready() || !running_.empty()) return true;
      if (idle && !nobody_at_work()) return true;  // somebody came in meanwhile
    }
    const std::vector<Op*> flows = flowing();
    std::vector<const Route*> routes;
    for (const Op* op : flows) routes.push_back(&op->route);
    const std::vector<double> rates = topology_->rates(routes);
    const uint64_t next = next_moment(flows, rates);
    if (next == UINT64_MAX) return false;
    const uint64_t step = next - now_ns_;
    links.carry(flows, rates, step);
    now_ns_ = next;
    for (size_t i = 0; i < flows.size(); ++i) {
      flows[i]->remaining -= rates[i] * static_cast<double>(step);
    }
    const std::vector<OpPtr> done = take_done();
    for (const OpPtr& op : done) finish(op);
    start_ready();  // an event behind them ends now, not after a deadline that is now
    if (reach_deadlines() || !done.empty()) return true;
  }
}

void Scheduler::check_idle(CUdeviceptr address, size_t bytes, const char* what) {
  const auto overlaps = [&](const Op::Side& side, size_t span) {
    return !side.host && side.address < address + bytes && address < side.address + span;
  };
  const auto touches = [&](const Op& op) {
    if (!op.parts.empty()) {
      return std::any_of(op.parts.begin(), op.parts.end(), [&](const Op::Part& part) {
        return overlaps(part.dst, part.bytes) || overlaps(part.src, part.bytes);
      });
    }
    if (op.kind == Op::Kind::kCompute) {
      return std::any_of(op.touched.begin(), op.touched.end(), [&](const Op::Touched& each) {
        return overlaps({each.address}, each.bytes);
      });
    }
    return overlaps(op.dst, op.dst.pitch * (op.rows - 1) + op.bytes) ||
           (op.kind == Op::Kind::kCopy &&
            overlaps(op.src, op.src.pitch * (op.rows - 1) + op.bytes));
  };
  for (const auto& [seq, op] : touching_) {
    if (!touches(*op)) continue;
    books().violation(what,
                      "work " + std::to_string(seq) + " on " + glake::device_text(op->device) +
                          " is pending on [" + std::to_string(address) + ", +" +
                          std::to_string(bytes) + ")",
                      now_ns());
  }
}

}  // namespace simcuda
