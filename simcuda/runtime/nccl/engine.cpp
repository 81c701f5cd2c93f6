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

constexpr uint64_t kAlign = 256;       // bytes, of each staged piece
constexpr uint64_t kIdleUs = 100'000;  // between two looks at the page when nothing happens
constexpr uint64_t kAskUs = 300;       // between two questions that let simulated work go on
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

// Makes the context of a default stream current.
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
    : seat_{room, rank, room->page()->size, simcuda_collective_phantom() != 0},
      device_(device),
      context_(context),
      stage_(room, rank),
      performer_(seat_, &stage_, &health_),
      splits_(seat_, &health_),
      order_(simcuda_order_new()) {}

Engine::~Engine() { simcuda_order_free(order_); }

void Engine::start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // only the program's own threads take signals
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Phantom memory that is too large to be known is not staged.
bool Engine::staged(const Part& part) const {
  return !seat_.phantom ||
         std::max(part.in_bytes(seat_.rank, seat_.size), part.out_bytes(seat_.rank, seat_.size)) <=
             simcuda_collective_most_known();
}

ncclResult Engine::prepare(Operation* operation, const std::vector<Part>& parts) {
  uint64_t in = 0, out = 0;
  for (const Part& part : parts) {
    Operation::Piece piece;
    piece.part = part;
    const bool apart = seat_.phantom && staged(part) && gathers(part.kind);
    piece.out_known.assign(apart ? static_cast<size_t>(seat_.size) : 1, 0);
    piece.in_offset = in;
    if (staged(part)) in += aligned(part.in_bytes(seat_.rank, seat_.size));
    piece.scale_offset = in;
    if (part.scale_address != nullptr) in += kAlign;
    operation->pieces.push_back(piece);
    if (staged(part)) out += aligned(part.out_bytes(seat_.rank, seat_.size));
  }
  operation->in_bytes = in;
  if (in != 0 && !seat_.phantom) {
    const ncclResult result = stage_.take(in, &operation->block);
    if (result != ncclSuccess) return result;
  }
  if (seat_.phantom) operation->in = Mapping::zeros(in);
  operation->out = Mapping::zeros(out);  // if the operation is aborted, its result is zeros
  if (operation->out == nullptr || (seat_.phantom && operation->in == nullptr)) {
    return fail(ncclSystemError,
                std::to_string(in + out) + " bytes of host memory to stage: " + strerror(errno));
  }
  const auto& source = seat_.phantom ? operation->in : operation->block.memory;
  char* const from = source != nullptr ? source->data() : nullptr;
  char* to = operation->out->data();
  for (Operation::Piece& piece : operation->pieces) {
    if (piece.part.scale_address != nullptr) piece.scale = from + piece.scale_offset;
    if (!staged(piece.part)) continue;
    if (piece.part.in_bytes(seat_.rank, seat_.size) != 0) piece.in = from + piece.in_offset;
    piece.out = to;
    to += aligned(piece.part.out_bytes(seat_.rank, seat_.size));
  }
  return ncclSuccess;
}

ncclResult Engine::enqueue(CUstream stream, const std::vector<Part>& parts) {
  if (error() != ncclSuccess) return fail(error(), health_.why());
  if (health_.stopping()) {
    return fail(ncclInvalidUsage, "the communicator was aborted or destroyed");
  }
  auto operation = std::make_unique<Operation>();
  operation->engine = shared_from_this();
  const ncclResult result = prepare(operation.get(), parts);
  if (result != ncclSuccess) return result;
  const Pieces pieces = pieces_of(operation.get(), seat_.rank, seat_.size, seat_.phantom);
  const Duration duration = duration_of(operation->pieces, seat_.page(), seat_.rank);
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
  // This comes before the work can run, because the thread counts what is done.
  ++enqueued_;
  const int code = simcuda_collective(stream, &work, order_, &how);
  if (code != CUDA_SUCCESS || how != SIMCUDA_ENQUEUED) --enqueued_;
  if (code != CUDA_SUCCESS) return cuda_error(code, parts[0].text());
  // A graph may run captured work at any time, so the work and its engine are never freed.
  if (how == SIMCUDA_CAPTURED) captured_ = operation->captured = true;
  operation.release();
  return ncclSuccess;
}

// Called on a thread of simcuda, and must not block it.
void Engine::reached(Operation* operation) {
  __atomic_store_n(&operation->go, 0, __ATOMIC_RELEASE);  // a graph runs it again
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!health_.stopping()) {
      queue_.push_back(operation);
      operation = nullptr;
    }
  }
  if (operation != nullptr) {
    __atomic_store_n(&operation->go, 1, __ATOMIC_RELEASE);
  } else {
    seat_.room->ring(seat_.rank);
  }
}

bool Engine::somebody_waits() const {
  const Page& page = seat_.page();
  const Rank& mine = page.rank[seat_.rank];
  for (int other = 0; other < seat_.size; ++other) {
    const Mail& to = page.mail[seat_.rank][other];
    const Mail& from = page.mail[other][seat_.rank];
    if (page.rank[other].posted > mine.posted || to.wanted > to.sent || from.sent > from.taken) {
      return true;
    }
  }
  return false;
}

void Engine::let_go(Operation* operation) {
  const bool captured = operation->captured;
  if (!captured) {
    stage_.give(std::move(operation->block), seat_.mine().posted.load(std::memory_order_relaxed));
  }
  // From here on the operation may be gone.
  simcuda_collective_go(&operation->go);
  if (!captured) ++done_;
}

void Engine::run() {
  while (!health_.stopping()) {
    const uint32_t bell = seat_.room->bell(seat_.rank);
    Operation* operation = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!queue_.empty() && error() == ncclSuccess) {
        operation = queue_.front();
        queue_.pop_front();
      }
    }
    if (operation != nullptr) {
      if (performer_.perform(operation)) {
        let_go(operation);
      } else {  // stop() releases it
        const std::lock_guard<std::mutex> lock(mutex_);
        queue_.push_front(operation);
      }
      continue;
    }
    // Simulated work runs only when somebody asks, and other ranks wait for it. On a GPU it would
    // run by itself.
    const bool ask = error() == ncclSuccess && somebody_waits() && (enqueued_ > done_ || captured_);
    for (int i = 0; ask && i < kQuestions && seat_.room->bell(seat_.rank) == bell; ++i) {
      simcuda_collective_ask();
    }
    seat_.room->listen(seat_.rank, bell, ask ? kAskUs : kIdleUs);
  }
}

ncclResult Engine::flush() {
  while (enqueued_ > done_ && !health_.ended()) {
    const uint32_t bell = seat_.room->bell(seat_.rank);
    simcuda_collective_ask();
    seat_.room->listen(seat_.rank, bell, kAskUs);
  }
  return error();
}

void Engine::stop(Presence how) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (health_.stopping()) return;
    health_.stop();
  }
  seat_.room->ring(seat_.rank);
  if (thread_.joinable()) thread_.join();
  for (Operation* operation : queue_) simcuda_collective_go(&operation->go);
  queue_.clear();
  seat_.room->leave(seat_.rank, how);
}

}  // namespace nccl
