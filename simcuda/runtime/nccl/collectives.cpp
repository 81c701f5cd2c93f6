#include "collectives.h"

#include <algorithm>
#include <cstring>

#include "reduce.h"

namespace nccl {
namespace {

Post post_of(const Operation& operation, const Operation::Piece& piece, uint64_t known) {
  const Part& part = piece.part;
  Post post{};
  post.kind = static_cast<uint32_t>(part.kind);
  post.type = static_cast<uint32_t>(part.type);
  // Each rank gives its reductions with a factor numbers of its own. So all of them get one number
  // here.
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

uint64_t known_of(const Seat& seat, const Operation::Piece& piece) {
  if (!seat.phantom) return piece.part.in_bytes(seat.rank, seat.size);
  return piece.scale == nullptr || piece.scale_known != 0 ? piece.in_known : 0;
}

void Collectives::bring(const Operation& operation, Operation::Piece* piece) {
  Rank& mine = seat_.mine();
  piece->number = mine.posted.load(std::memory_order_relaxed);
  mine.post[piece->number % 2] = post_of(operation, *piece, known_of(seat_, *piece));
  mine.posted.store(piece->number + 1, std::memory_order_release);
  piece->state = Operation::Piece::kBrought;
  seat_.room->ring_all(seat_.rank);
}

bool Collectives::all_brought(uint64_t number) const {
  for (int rank = 0; rank < seat_.size; ++rank) {
    if (seat_.page().rank[rank].posted.load(std::memory_order_acquire) <= number) return false;
  }
  return true;
}

bool Collectives::all_passed(uint64_t number) const {
  for (int rank = 0; rank < seat_.size; ++rank) {
    if (seat_.page().rank[rank].passed.load(std::memory_order_acquire) <= number) return false;
  }
  return true;
}

bool Collectives::advance(const Operation& operation, Operation::Piece* piece) {
  if (piece->state == Operation::Piece::kWaiting) bring(operation, piece);
  if (piece->state == Operation::Piece::kBrought) {
    if (!all_brought(piece->number)) return false;
    if (!same(*piece) || !compute(operation, piece)) return false;
    seat_.mine().passed.store(piece->number + 1, std::memory_order_release);
    // A graph's next launch reads into the same block, so the other ranks must first be done with
    // it.
    piece->state = operation.captured ? Operation::Piece::kDone : Operation::Piece::kOver;
    if (operation.captured) seat_.room->ring_all(seat_.rank);
  }
  if (piece->state == Operation::Piece::kDone && all_passed(piece->number)) {
    piece->state = Operation::Piece::kOver;
  }
  return piece->state == Operation::Piece::kOver;
}

bool Collectives::same(const Operation::Piece& piece) {
  const Post& mine = seat_.mine().post[piece.number % 2];
  for (int rank = 0; rank < seat_.size; ++rank) {
    const Post& theirs = seat_.page().rank[rank].post[piece.number % 2];
    if (theirs.kind == mine.kind && theirs.type == mine.type && theirs.op == mine.op &&
        theirs.root == mine.root && theirs.count == mine.count) {
      continue;
    }
    health_->broken(ncclInvalidUsage, "collective " + std::to_string(piece.number) +
                                          " of the communicator: rank " +
                                          std::to_string(seat_.rank) + " calls " + text_of(mine) +
                                          ", rank " + std::to_string(rank) + " " + text_of(theirs));
    return false;
  }
  return true;
}

void Collectives::fold(const Operation::Piece& piece, const std::vector<const char*>& inputs,
                       uint64_t first) {
  const Part& part = piece.part;
  std::vector<const char*> from;
  std::vector<double> scales;
  for (int rank = 0; rank < seat_.size; ++rank) {
    from.push_back(inputs[static_cast<size_t>(rank)] + first);
    scales.push_back(seat_.page().rank[rank].post[piece.number % 2].scale);
  }
  const bool scaled = part.op >= ncclNumOps;
  reduce(part.type, part.op, from, scaled ? scales.data() : nullptr, part.count, piece.out);
}

// How much of the result is known. A reduction's result is known if all of its inputs are. If bytes
// only move, the part from a rank counts as known if any of its bytes is. The rest of that part is
// zero, as a host would read it.
bool Collectives::find_known(Operation::Piece* piece) const {
  const Part& part = piece->part;
  const uint64_t each = part.out_bytes(seat_.rank, seat_.size) / piece->out_known.size();
  bool any = false;
  for (size_t i = 0; i < piece->out_known.size(); ++i) {
    bool known = piece->out != nullptr;
    if (reduces(part.kind)) {
      for (int rank = 0; rank < seat_.size; ++rank) {
        known = known && brought(*piece, rank) == part.in_bytes(rank, seat_.size);
      }
    } else {
      known = known && brought(*piece, gathers(part.kind) ? static_cast<int>(i) : part.root) != 0;
    }
    piece->out_known[i] = known ? each : 0;
    any = any || known;
  }
  return any;
}

uint64_t Collectives::brought(const Operation::Piece& piece, int rank) const {
  return seat_.page().rank[rank].post[piece.number % 2].known;
}

bool Collectives::compute(const Operation& operation, Operation::Piece* piece) {
  const Part& part = piece->part;
  if (part.out_bytes(seat_.rank, seat_.size) == 0) return true;
  if (seat_.phantom && !find_known(piece)) return true;
  const uint64_t bytes = part.count * width_of(part.type);
  std::vector<const char*> inputs;
  std::vector<std::shared_ptr<Mapping>> holds(static_cast<size_t>(seat_.size));
  for (int rank = 0; rank < seat_.size; ++rank) {
    const Post& post = seat_.page().rank[rank].post[piece->number % 2];
    const uint64_t brought = post.known != 0 ? part.in_bytes(rank, seat_.size) : 0;
    const char* at = nullptr;
    if (brought != 0) {
      at = rank == seat_.rank ? operation.block.memory->data() + piece->in_offset
                              : others_->read(rank, post.block, post.offset, brought,
                                              &holds[static_cast<size_t>(rank)]);
      if (at == nullptr) {
        health_->broken(ncclSystemError, "the staged bytes of rank " + std::to_string(rank) +
                                             " cannot be read: " + seat_.room->directory());
        return false;
      }
    }
    inputs.push_back(at);
  }
  const uint64_t mine = static_cast<uint64_t>(seat_.rank) * bytes;
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
    default:  // from all ranks, in their order
      for (size_t rank = 0; rank < inputs.size(); ++rank) {
        const uint64_t first = part.kind == Kind::kAllToAll ? mine : 0;
        if (inputs[rank] == nullptr) continue;  // its bytes are not known
        std::memcpy(piece->out + rank * bytes, inputs[rank] + first, bytes);
      }
      return true;
  }
}

}  // namespace nccl
