// Moves the bytes of an operation's parts between the ranks: messages as the other side is ready
// for them, collectives one after another.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

#include "engine.h"
#include "reduce.h"

namespace nccl {
namespace {

constexpr uint64_t kListenUs = 20'000;
constexpr auto kLookAtRanks = std::chrono::milliseconds(100);

using State = decltype(Operation::Piece::state);

Post post_of(const Operation& operation, const Operation::Piece& piece, uint64_t known) {
  const Part& part = piece.part;
  Post post{};
  post.kind = static_cast<uint32_t>(part.kind);
  post.type = static_cast<uint32_t>(part.type);
  // Each rank numbers its own reductions with a factor.
  post.op = static_cast<uint32_t>(std::min<int>(part.op, ncclNumOps));
  post.root = part.root;
  post.count = part.count;
  post.scale = part.scale;
  post.block = operation.block.index;
  post.offset = piece.in_offset;
  if (piece.scale != nullptr) post.scale = read_scalar(part.type, piece.scale);
  post.known = known;
  return post;
}

std::string text_of(const Post& post) {
  Part part;
  part.kind = static_cast<Kind>(post.kind);
  part.type = static_cast<int>(post.type);
  part.op = static_cast<int>(post.op);
  part.root = post.root;
  part.count = post.count;
  return part.text();
}

}  // namespace

// What this rank knows of phantom memory goes where the others read it.
bool Engine::show_known(Operation* operation) {
  const auto known = [](const Operation::Piece& piece) { return piece.in_known != 0; };
  if (std::none_of(operation->pieces.begin(), operation->pieces.end(), known)) return true;
  if (operation->block.memory == nullptr) {
    const ncclResult result = stage_.take(operation->in_bytes, &operation->block);
    if (result != ncclSuccess) {
      broken(result, "no shared memory to stage what is known in");
      return false;
    }
  }
  for (const Operation::Piece& piece : operation->pieces) {
    if (piece.in_known == 0) continue;
    std::memcpy(operation->block.memory->data() + piece.in_offset, piece.in,
                piece.part.in_bytes(rank_, size_));
  }
  return true;
}

bool Engine::perform(Operation* operation) {
  if (phantom_ && !show_known(operation)) return false;
  for (Operation::Piece& piece : operation->pieces) piece.state = Operation::Piece::kWaiting;
  auto looked = std::chrono::steady_clock::now();
  while (true) {
    const uint32_t bell = room_->bell(rank_);
    const bool moved = advance(operation);
    const bool over = std::all_of(
        operation->pieces.begin(), operation->pieces.end(),
        [](const Operation::Piece& piece) { return piece.state == Operation::Piece::kOver; });
    if (over && error_ == ncclSuccess) return true;
    if (ended()) return false;
    if (moved) continue;
    room_->listen(rank_, bell, kListenUs);
    const auto now = std::chrono::steady_clock::now();
    if (now - looked < kLookAtRanks) continue;
    looked = now;
    if (!check_ranks(*operation)) return false;
  }
}

bool Engine::advance(Operation* operation) {
  bool moved = false, collective = false;
  std::set<int> sending, receiving;  // messages of a pair keep their order
  for (Operation::Piece& piece : operation->pieces) {
    if (piece.state == Operation::Piece::kOver) continue;
    const State before = piece.state;
    if (piece.part.kind == Kind::kSend) {
      if (sending.insert(piece.part.root).second) moved |= advance_send(*operation, &piece);
    } else if (piece.part.kind == Kind::kRecv) {
      if (receiving.insert(piece.part.root).second) moved |= advance_recv(&piece);
    } else if (!collective) {
      collective = true;
      moved |= advance_collective(operation, &piece);
    }
    moved |= piece.state != before;
  }
  return moved;
}

void Engine::bring(const Operation& operation, Operation::Piece* piece) {
  Rank& mine = room_->page()->rank[rank_];
  piece->number = mine.posted.load(std::memory_order_relaxed);
  mine.post[piece->number % 2] = post_of(operation, *piece, known_of(*piece));
  mine.posted.store(piece->number + 1, std::memory_order_release);
  piece->state = Operation::Piece::kBrought;
  room_->ring_all(rank_);
}

bool Engine::all_brought(uint64_t number) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (room_->page()->rank[rank].posted.load(std::memory_order_acquire) <= number) return false;
  }
  return true;
}

bool Engine::all_passed(uint64_t number) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (room_->page()->rank[rank].passed.load(std::memory_order_acquire) <= number) return false;
  }
  return true;
}

bool Engine::advance_collective(Operation* operation, Operation::Piece* piece) {
  if (piece->state == Operation::Piece::kWaiting) bring(*operation, piece);
  if (piece->state == Operation::Piece::kBrought) {
    if (!all_brought(piece->number)) return false;
    if (!same(*piece) || !compute(*operation, piece)) return false;
    room_->page()->rank[rank_].passed.store(piece->number + 1, std::memory_order_release);
    // What a graph reads into next time is the same block: the others are done with it first.
    piece->state = operation->captured ? Operation::Piece::kDone : Operation::Piece::kOver;
    if (operation->captured) room_->ring_all(rank_);
  }
  if (piece->state == Operation::Piece::kDone && all_passed(piece->number)) {
    piece->state = Operation::Piece::kOver;
  }
  return piece->state == Operation::Piece::kOver;
}

bool Engine::same(const Operation::Piece& piece) {
  const Post& mine = room_->page()->rank[rank_].post[piece.number % 2];
  for (int rank = 0; rank < size_; ++rank) {
    const Post& theirs = room_->page()->rank[rank].post[piece.number % 2];
    if (theirs.kind == mine.kind && theirs.type == mine.type && theirs.op == mine.op &&
        theirs.root == mine.root && theirs.count == mine.count) {
      continue;
    }
    broken(ncclInvalidUsage, "collective " + std::to_string(piece.number) +
                                 " of the communicator: rank " + std::to_string(rank_) + " calls " +
                                 text_of(mine) + ", rank " + std::to_string(rank) + " " +
                                 text_of(theirs));
    return false;
  }
  return true;
}

void Engine::fold(const Operation::Piece& piece, const std::vector<const char*>& inputs,
                  uint64_t first) {
  const Part& part = piece.part;
  std::vector<const char*> from;
  std::vector<double> scales;
  for (int rank = 0; rank < size_; ++rank) {
    from.push_back(inputs[static_cast<size_t>(rank)] + first);
    scales.push_back(room_->page()->rank[rank].post[piece.number % 2].scale);
  }
  const bool scaled = part.op >= ncclNumOps;
  reduce(part.type, part.op, from, scaled ? scales.data() : nullptr, part.count, piece.out);
}

// How much of what this rank brings is known.
uint64_t Engine::known_of(const Operation::Piece& piece) const {
  if (!phantom_) return piece.part.in_bytes(rank_, size_);
  return piece.scale == nullptr || piece.scale_known != 0 ? piece.in_known : 0;
}

// How much of the result is known: of a reduction all, if all that it is made of is. Where bytes
// only move, what comes from a rank is if any of it is; the rest of that is zero, as a host would
// read it.
bool Engine::find_known(Operation::Piece* piece) const {
  const Part& part = piece->part;
  const uint64_t each = part.out_bytes(rank_, size_) / piece->out_known.size();
  bool any = false;
  for (size_t i = 0; i < piece->out_known.size(); ++i) {
    bool known = piece->out != nullptr;
    if (reduces(part.kind)) {
      for (int rank = 0; rank < size_; ++rank) {
        known = known && brought(*piece, rank) == part.in_bytes(rank, size_);
      }
    } else {
      known = known && brought(*piece, gathers(part.kind) ? static_cast<int>(i) : part.root) != 0;
    }
    piece->out_known[i] = known ? each : 0;
    any = any || known;
  }
  return any;
}

uint64_t Engine::brought(const Operation::Piece& piece, int rank) const {
  return room_->page()->rank[rank].post[piece.number % 2].known;
}

bool Engine::compute(const Operation& operation, Operation::Piece* piece) {
  const Part& part = piece->part;
  if (part.out_bytes(rank_, size_) == 0) return true;
  if (phantom_ && !find_known(piece)) return true;
  const uint64_t bytes = part.count * width_of(part.type);
  std::vector<const char*> inputs;
  std::vector<std::shared_ptr<Mapping>> holds(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    const Post& post = room_->page()->rank[rank].post[piece->number % 2];
    const uint64_t brought = post.known != 0 ? part.in_bytes(rank, size_) : 0;
    const char* at = nullptr;
    if (brought != 0) {
      at = rank == rank_ ? operation.block.memory->data() + piece->in_offset
                         : others_.read(rank, post.block, post.offset, brought,
                                        &holds[static_cast<size_t>(rank)]);
      if (at == nullptr) {
        broken(ncclSystemError, "the staged bytes of rank " + std::to_string(rank) +
                                    " cannot be read: " + room_->directory());
        return false;
      }
    }
    inputs.push_back(at);
  }
  const uint64_t mine = static_cast<uint64_t>(rank_) * bytes;
  const auto root = static_cast<size_t>(part.root);
  switch (part.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      fold(*piece, inputs, 0);
      return true;
    case Kind::kReduceScatter:
      fold(*piece, inputs, mine);
      return true;
    case Kind::kBroadcast:
      std::memcpy(piece->out, inputs[root], bytes);
      return true;
    case Kind::kScatter:
      std::memcpy(piece->out, inputs[root] + mine, bytes);
      return true;
    default:  // from everybody, in the order of the ranks
      for (size_t rank = 0; rank < inputs.size(); ++rank) {
        const uint64_t first = part.kind == Kind::kAllToAll ? mine : 0;
        if (inputs[rank] == nullptr) continue;  // not known
        std::memcpy(piece->out + rank * bytes, inputs[rank] + first, bytes);
      }
      return true;
  }
}

// A send is over when the other side has the bytes, as NVIDIA's documentation has it: "blocking
// for the GPU"; what must go on at the same time is to be in one group.
bool Engine::advance_send(const Operation& operation, Operation::Piece* piece) {
  Mail& mail = room_->page()->mail[rank_][piece->part.root];
  if (piece->state == Operation::Piece::kWaiting) {
    if (mail.sent != mail.taken.load(std::memory_order_acquire)) return false;
    mail.type = static_cast<uint32_t>(piece->part.type);
    mail.count = piece->part.count;
    mail.block = operation.block.index;
    mail.offset = piece->in_offset;
    mail.known = known_of(*piece);
    piece->number = mail.sent + 1;
    mail.sent.store(piece->number, std::memory_order_release);
    piece->state = Operation::Piece::kBrought;
    room_->ring(piece->part.root);
  }
  if (mail.taken.load(std::memory_order_acquire) < piece->number) return false;
  piece->state = Operation::Piece::kOver;
  return true;
}

bool Engine::advance_recv(Operation::Piece* piece) {
  const Part& part = piece->part;
  Mail& mail = room_->page()->mail[part.root][rank_];
  if (piece->state == Operation::Piece::kWaiting) {
    piece->number = mail.taken + 1;
    mail.wanted = piece->number;
    piece->state = Operation::Piece::kBrought;
    room_->ring(part.root);
  }
  if (mail.sent.load(std::memory_order_acquire) < piece->number) return false;
  const uint64_t bytes = part.count * width_of(part.type);
  const uint64_t sent = mail.count * width_of(static_cast<int>(mail.type));
  if (sent != bytes) {
    broken(ncclInvalidUsage, "rank " + std::to_string(part.root) + " sends " +
                                 std::to_string(sent) + " bytes, rank " + std::to_string(rank_) +
                                 " receives " + std::to_string(bytes));
    return false;
  }
  piece->out_known[0] = mail.known != 0 && piece->out != nullptr ? bytes : 0;
  if (piece->out_known[0] != 0) {
    std::shared_ptr<Mapping> hold;
    const char* from = others_.read(part.root, mail.block, mail.offset, bytes, &hold);
    if (from == nullptr) {
      broken(ncclSystemError, "the staged bytes of rank " + std::to_string(part.root) +
                                  " cannot be read: " + room_->directory());
      return false;
    }
    std::memcpy(piece->out, from, bytes);
  }
  mail.taken.store(piece->number, std::memory_order_release);
  piece->state = Operation::Piece::kOver;
  room_->ring(part.root);
  return true;
}

bool Engine::needs(const Operation::Piece& piece, int rank) const {
  const Page& page = *room_->page();
  switch (piece.part.kind) {
    case Kind::kSend:
      return rank == piece.part.root && page.mail[rank_][rank].taken < piece.number;
    case Kind::kRecv:
      return rank == piece.part.root && page.mail[rank][rank_].sent < piece.number;
    default:
      return piece.state == Operation::Piece::kDone ? page.rank[rank].passed <= piece.number
                                                    : page.rank[rank].posted <= piece.number;
  }
}

// A rank that is gone and has not brought what this operation needs.
bool Engine::check_ranks(const Operation& operation) {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || room_->alive(rank)) continue;
    for (const Operation::Piece& piece : operation.pieces) {
      const bool under_way =
          piece.state == Operation::Piece::kBrought || piece.state == Operation::Piece::kDone;
      if (!under_way || !needs(piece, rank)) continue;
      const Presence presence = room_->page()->rank[rank].presence;
      const char* how = presence == Presence::kAborted ? "has aborted its communicator"
                        : presence == Presence::kLeft  ? "has destroyed its communicator"
                                                       : "has died";
      broken(ncclRemoteError, "rank " + std::to_string(rank) + " " + how + ", and rank " +
                                  std::to_string(rank_) + " waits for it in " + piece.part.text());
      return false;
    }
  }
  return true;
}

}  // namespace nccl
