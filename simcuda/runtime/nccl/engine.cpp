#include "engine.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "duration.h"
#include "error.h"
#include "reduce.h"

namespace nccl {
namespace {

constexpr uint64_t kAlign = 256;
constexpr uint64_t kIdleUs = 100'000;  // between two looks at the page when nothing happens
constexpr uint64_t kAskUs = 300;       // between two questions that move the simulated work on
constexpr int kQuestions = 32;         // at once

uint64_t aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

uint64_t number(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// The pieces of memory that stream work reads and writes.
struct Pieces {
  std::vector<simcuda_piece> in, out;
};

Pieces pieces_of(Operation* operation, int rank, int size, bool phantom) {
  static char nowhere[1];
  Pieces made;
  const auto piece_of = [&](const void* memory, char* host, uint64_t bytes, size_t* known) {
    const bool told = phantom && host != nullptr;
    return simcuda_piece{number(memory), host != nullptr ? host : nowhere, bytes,
                         told ? known : nullptr};
  };
  for (Operation::Piece& piece : operation->pieces) {
    const Part& part = piece.part;
    made.in.push_back(piece_of(part.in, piece.in, part.in_bytes(rank, size), &piece.in_known));
    if (part.scale_address != nullptr) {
      made.in.push_back(
          piece_of(part.scale_address, piece.scale, width_of(part.type), &piece.scale_known));
    }
    const uint64_t each = part.out_bytes(rank, size) / piece.out_known.size();
    for (size_t i = 0; i < piece.out_known.size(); ++i) {
      char* const host = piece.out != nullptr ? piece.out + i * each : nullptr;
      const void* const memory = static_cast<const char*>(part.out) + i * each;
      made.out.push_back(piece_of(memory, host, each, &piece.out_known[i]));
    }
  }
  return made;
}

// The context a default stream is of.
class InContext {
 public:
  InContext(CUstream stream, CUcontext wanted) {
    if (number(stream) > number(CU_STREAM_PER_THREAD)) return;
    changed_ = cuCtxGetCurrent(&before_) == CUDA_SUCCESS && before_ != wanted &&
               cuCtxSetCurrent(wanted) == CUDA_SUCCESS;
  }
  ~InContext() {
    if (changed_) cuCtxSetCurrent(before_);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  CUcontext before_ = nullptr;
  bool changed_ = false;
};

}  // namespace

Engine::Engine(std::shared_ptr<Room> room, int rank, int device, CUcontext context)
    : room_(std::move(room)),
      rank_(rank),
      size_(room_->page()->size),
      device_(device),
      context_(context),
      phantom_(simcuda_collective_phantom() != 0),
      stage_(room_, rank),
      others_(room_),
      order_(simcuda_order_new()) {}

Engine::~Engine() { simcuda_order_free(order_); }

void Engine::start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ncclResult Engine::broken(ncclResult code, const std::string& text) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ != ncclSuccess) return error_;
    why_ = text;
    error_ = code;
  }
  return fail(code, text);
}

std::string Engine::why() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return why_;
}

// What is too large to be known in phantom memory is staged nowhere.
bool Engine::staged(const Part& part) const {
  return !phantom_ || std::max(part.in_bytes(rank_, size_), part.out_bytes(rank_, size_)) <=
                          simcuda_collective_most_known();
}

ncclResult Engine::prepare(Operation* operation, const std::vector<Part>& parts) {
  uint64_t in = 0, out = 0;
  for (const Part& part : parts) {
    Operation::Piece piece;
    piece.part = part;
    const bool apart = phantom_ && staged(part) && gathers(part.kind);
    piece.out_known.assign(apart ? static_cast<size_t>(size_) : 1, 0);
    piece.in_offset = in;
    if (staged(part)) in += aligned(part.in_bytes(rank_, size_));
    piece.scale_offset = in;
    if (part.scale_address != nullptr) in += kAlign;
    operation->pieces.push_back(piece);
    if (staged(part)) out += aligned(part.out_bytes(rank_, size_));
  }
  operation->in_bytes = in;
  if (in != 0 && !phantom_) {
    const ncclResult result = stage_.take(in, &operation->block);
    if (result != ncclSuccess) return result;
  }
  if (phantom_) operation->in = Mapping::zeros(in);
  operation->out = Mapping::zeros(out);  // an aborted one gives zeros
  if (operation->out == nullptr || (phantom_ && operation->in == nullptr)) {
    return fail(ncclSystemError,
                std::to_string(in + out) + " bytes of host memory to stage: " + strerror(errno));
  }
  const auto& source = phantom_ ? operation->in : operation->block.memory;
  char* const from = source != nullptr ? source->data() : nullptr;
  char* to = operation->out->data();
  for (Operation::Piece& piece : operation->pieces) {
    if (piece.part.scale_address != nullptr) piece.scale = from + piece.scale_offset;
    if (!staged(piece.part)) continue;
    if (piece.part.in_bytes(rank_, size_) != 0) piece.in = from + piece.in_offset;
    piece.out = to;
    to += aligned(piece.part.out_bytes(rank_, size_));
  }
  return ncclSuccess;
}

ncclResult Engine::enqueue(CUstream stream, const std::vector<Part>& parts) {
  if (error_ != ncclSuccess) return fail(error_, why());
  if (stopping_) return fail(ncclInvalidUsage, "the communicator was aborted or destroyed");
  auto operation = std::make_unique<Operation>();
  operation->engine = shared_from_this();
  const ncclResult result = prepare(operation.get(), parts);
  if (result != ncclSuccess) return result;
  const Pieces pieces = pieces_of(operation.get(), rank_, size_, phantom_);
  const Duration duration = duration_of(operation->pieces, *room_->page(), rank_);
  simcuda_collective_work work{};
  work.in = pieces.in.data();
  work.ins = pieces.in.size();
  work.out = pieces.out.data();
  work.outs = pieces.out.size();
  work.flows = duration.flows.data();
  work.flow_count = duration.flows.size();
  work.latency_ns = duration.latency_ns;
  work.data = operation.get();
  work.go = &operation->go;
  work.reached = [](void* data) {
    auto* it = static_cast<Operation*>(data);
    it->engine->reached(it);
  };
  work.release = [](void* data) { delete static_cast<Operation*>(data); };
  const InContext current(stream, context_);
  int how = SIMCUDA_ENQUEUED;
  // Before the work can run: the thread counts what is done.
  ++enqueued_;
  const int code = simcuda_collective(stream, &work, order_, &how);
  if (code != CUDA_SUCCESS || how != SIMCUDA_ENQUEUED) --enqueued_;
  if (code != CUDA_SUCCESS) return cuda_error(code, parts[0].text());
  // A graph may run captured work at any time: it and its engine are there for good.
  if (how == SIMCUDA_CAPTURED) captured_ = operation->captured = true;
  operation.release();
  return ncclSuccess;
}

// On a thread of simcuda, which must not be kept.
void Engine::reached(Operation* operation) {
  __atomic_store_n(&operation->go, 0, __ATOMIC_RELEASE);  // a graph runs it again
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_) {
      queue_.push_back(operation);
      operation = nullptr;
    }
  }
  if (operation != nullptr) {
    __atomic_store_n(&operation->go, 1, __ATOMIC_RELEASE);
  } else {
    room_->ring(rank_);
  }
}

bool Engine::somebody_waits() const {
  const Page& page = *room_->page();
  const Rank& mine = page.rank[rank_];
  for (int other = 0; other < size_; ++other) {
    const Mail& to = page.mail[rank_][other];
    const Mail& from = page.mail[other][rank_];
    if (page.rank[other].posted > mine.posted || to.wanted > to.sent || from.sent > from.taken) {
      return true;
    }
  }
  return false;
}

void Engine::let_go(Operation* operation) {
  const bool captured = operation->captured;
  if (!captured) {
    stage_.give(std::move(operation->block),
                room_->page()->rank[rank_].posted.load(std::memory_order_relaxed));
  }
  // From here on the operation may be gone.
  simcuda_collective_go(&operation->go);
  if (!captured) ++done_;
}

void Engine::run() {
  while (!stopping_) {
    const uint32_t bell = room_->bell(rank_);
    Operation* operation = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!queue_.empty() && error_ == ncclSuccess) {
        operation = queue_.front();
        queue_.pop_front();
      }
    }
    if (operation != nullptr) {
      if (perform(operation)) {
        let_go(operation);
      } else {  // stop() lets it go
        const std::lock_guard<std::mutex> lock(mutex_);
        queue_.push_front(operation);
      }
      continue;
    }
    // Simulated work runs when somebody asks; on a GPU it would run by itself, and others wait.
    const bool ask = error_ == ncclSuccess && somebody_waits() && (enqueued_ > done_ || captured_);
    for (int i = 0; ask && i < kQuestions && room_->bell(rank_) == bell; ++i) {
      simcuda_collective_ask();
    }
    room_->listen(rank_, bell, ask ? kAskUs : kIdleUs);
  }
}

ncclResult Engine::flush() {
  while (enqueued_ > done_ && !ended()) {
    const uint32_t bell = room_->bell(rank_);
    simcuda_collective_ask();
    room_->listen(rank_, bell, kAskUs);
  }
  return error_;
}

void Engine::stop(Presence how) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  room_->ring(rank_);
  if (thread_.joinable()) thread_.join();
  for (Operation* operation : queue_) simcuda_collective_go(&operation->go);
  queue_.clear();
  room_->leave(rank_, how);
}

uint64_t Engine::publish_split(int color, int key) {
  const uint64_t turn = ++splits_;
  Split& mine = room_->page()->rank[rank_].split[turn % 2];
  mine.color = color;
  mine.key = key;
  mine.turn.store(turn, std::memory_order_release);
  room_->ring_all(-1);
  return turn;
}

ncclResult Engine::read_split(uint64_t turn, std::vector<std::pair<int, int>>* colors_and_keys) {
  for (int other = 0; other < size_; ++other) {
    const Split& theirs = room_->page()->rank[other].split[turn % 2];
    while (true) {
      const uint32_t bell = room_->bell(rank_);
      if (theirs.turn.load(std::memory_order_acquire) == turn) break;
      if (ended()) return fail(ncclInvalidUsage, "split: the communicator has ended");
      if (!room_->alive(other)) {
        return broken(ncclRemoteError, "split: rank " + std::to_string(other) + " is gone");
      }
      room_->listen(rank_, bell, kIdleUs);
    }
    colors_and_keys->emplace_back(theirs.color, theirs.key);
  }
  return ncclSuccess;
}

int Engine::add_scale(double value, const void* address, int type) {
  const std::lock_guard<std::mutex> lock(mutex_);
  scales_[next_scale_] = {value, address, type};
  return next_scale_++;
}

bool Engine::drop_scale(int op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return scales_.erase(op) == 1;
}

bool Engine::find_scale(int op, Part* part) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = scales_.find(op);
  if (found == scales_.end() || found->second.type != part->type) return false;
  part->scale = found->second.value;
  part->scale_address = found->second.address;
  return true;
}

}  // namespace nccl
