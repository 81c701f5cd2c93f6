#include "performer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

namespace nccl {
namespace {

// The longest wait for other ranks' changes, and the time between two looks for ranks that have
// gone.
constexpr uint64_t kPartnersUs = 20'000;
constexpr auto kLookAtRanks = std::chrono::milliseconds(100);

using State = decltype(Operation::Piece::state);

}  // namespace

// Puts the known bytes of this rank's phantom memory where the other ranks read them.
bool Performer::show_known(Operation* operation) {
  const auto known = [](const Operation::Piece& piece) { return piece.in_known != 0; };
  if (std::none_of(operation->pieces.begin(), operation->pieces.end(), known)) return true;
  if (operation->block.memory == nullptr) {
    const ncclResult result = stage_->take(operation->in_bytes, &operation->block);
    if (result != ncclSuccess) {
      health_->broken(result, "no shared memory to stage what is known in");
      return false;
    }
  }
  for (const Operation::Piece& piece : operation->pieces) {
    if (piece.in_known == 0) continue;
    std::memcpy(operation->block.memory->data() + piece.in_offset, piece.in,
                piece.part.in_bytes(seat_.rank, seat_.size));
  }
  return true;
}

bool Performer::perform(Operation* operation) {
  if (seat_.phantom && !show_known(operation)) return false;
  for (Operation::Piece& piece : operation->pieces) piece.state = Operation::Piece::kWaiting;
  auto looked = std::chrono::steady_clock::now();
  while (true) {
    const uint32_t bell = seat_.room->bell(seat_.rank);
    const bool moved = advance(operation);
    const bool over = std::all_of(
        operation->pieces.begin(), operation->pieces.end(),
        [](const Operation::Piece& piece) { return piece.state == Operation::Piece::kOver; });
    if (over && health_->error() == ncclSuccess) return true;
    if (health_->ended()) return false;
    if (moved) continue;
    seat_.room->listen(seat_.rank, bell, kPartnersUs);
    const auto now = std::chrono::steady_clock::now();
    if (now - looked < kLookAtRanks) continue;
    looked = now;
    if (!check_ranks(*operation)) return false;
  }
}

bool Performer::advance(Operation* operation) {
  bool moved = false, collective = false;
  std::set<int> sending, receiving;  // peers: the messages of a pair go one by one, in their order
  for (Operation::Piece& piece : operation->pieces) {
    if (piece.state == Operation::Piece::kOver) continue;
    const State before = piece.state;
    if (piece.part.kind == Kind::kSend) {
      if (sending.insert(piece.part.root).second) moved |= advance_send(*operation, &piece);
    } else if (piece.part.kind == Kind::kRecv) {
      if (receiving.insert(piece.part.root).second) moved |= advance_recv(&piece);
    } else if (!collective) {
      collective = true;
      moved |= collectives_.advance(*operation, &piece);
    }
    moved |= piece.state != before;
  }
  return moved;
}

// A send is over when the other side has the bytes, as in NVIDIA's documentation: "blocking for the
// GPU". Calls that must go on at the same time belong in one group.
bool Performer::advance_send(const Operation& operation, Operation::Piece* piece) {
  Mail& mail = seat_.page().mail[seat_.rank][piece->part.root];
  if (piece->state == Operation::Piece::kWaiting) {
    if (mail.sent != mail.taken.load(std::memory_order_acquire)) return false;
    mail.type = static_cast<uint32_t>(piece->part.type);
    mail.count = piece->part.count;
    mail.block = operation.block.index;
    mail.offset = piece->in_offset;
    mail.known = known_of(seat_, *piece);
    piece->number = mail.sent + 1;
    mail.sent.store(piece->number, std::memory_order_release);
    piece->state = Operation::Piece::kBrought;
    seat_.room->ring(piece->part.root);
  }
  if (mail.taken.load(std::memory_order_acquire) < piece->number) return false;
  piece->state = Operation::Piece::kOver;
  return true;
}

bool Performer::advance_recv(Operation::Piece* piece) {
  const Part& part = piece->part;
  Mail& mail = seat_.page().mail[part.root][seat_.rank];
  if (piece->state == Operation::Piece::kWaiting) {
    piece->number = mail.taken + 1;
    mail.wanted = piece->number;
    piece->state = Operation::Piece::kBrought;
    seat_.room->ring(part.root);
  }
  if (mail.sent.load(std::memory_order_acquire) < piece->number) return false;
  const uint64_t bytes = part.count * width_of(part.type);
  const uint64_t sent = mail.count * width_of(static_cast<int>(mail.type));
  if (sent != bytes) {
    health_->broken(ncclInvalidUsage, "rank " + std::to_string(part.root) + " sends " +
                                          std::to_string(sent) + " bytes, rank " +
                                          std::to_string(seat_.rank) + " receives " +
                                          std::to_string(bytes));
    return false;
  }
  piece->out_known[0] = mail.known != 0 && piece->out != nullptr ? bytes : 0;
  if (piece->out_known[0] != 0) {
    std::shared_ptr<Mapping> hold;
    const char* from = others_.read(part.root, mail.block, mail.offset, bytes, &hold);
    if (from == nullptr) {
      health_->broken(ncclSystemError, "the staged bytes of rank " + std::to_string(part.root) +
                                           " cannot be read: " + seat_.room->directory());
      return false;
    }
    std::memcpy(piece->out, from, bytes);
  }
  mail.taken.store(piece->number, std::memory_order_release);
  piece->state = Operation::Piece::kOver;
  seat_.room->ring(part.root);
  return true;
}

bool Performer::needs(const Operation::Piece& piece, int rank) const {
  const Page& page = seat_.page();
  switch (piece.part.kind) {
    case Kind::kSend:
      return rank == piece.part.root && page.mail[seat_.rank][rank].taken < piece.number;
    case Kind::kRecv:
      return rank == piece.part.root && page.mail[rank][seat_.rank].sent < piece.number;
    default:
      return piece.state == Operation::Piece::kDone ? page.rank[rank].passed <= piece.number
                                                    : page.rank[rank].posted <= piece.number;
  }
}

// Looks for a rank that is gone and has not brought what this operation needs.
bool Performer::check_ranks(const Operation& operation) {
  for (int rank = 0; rank < seat_.size; ++rank) {
    if (rank == seat_.rank || seat_.room->alive(rank)) continue;
    for (const Operation::Piece& piece : operation.pieces) {
      const bool under_way =
          piece.state == Operation::Piece::kBrought || piece.state == Operation::Piece::kDone;
      if (!under_way || !needs(piece, rank)) continue;
      const Presence presence = seat_.page().rank[rank].presence;
      const char* how = presence == Presence::kAborted ? "has aborted its communicator"
                        : presence == Presence::kLeft  ? "has destroyed its communicator"
                                                       : "has died";
      health_->broken(ncclRemoteError, "rank " + std::to_string(rank) + " " + how + ", and rank " +
                                           std::to_string(seat_.rank) + " waits for it in " +
                                           piece.part.text());
      return false;
    }
  }
  return true;
}

}  // namespace nccl
