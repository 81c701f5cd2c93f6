#include "transfer/run/chunk_copier.h"

#include <algorithm>

#include "base/transfer_tuning.h"
#include "plan/block_ways.h"
#include "transfer/call/quiesce.h"

namespace glake::transfer {
namespace {

bool between_gpus(const Hop& hop) {
  return !hop.from.host() && !hop.to.host() && hop.from.gpu != hop.to.gpu;
}

}  // namespace

bool ChunkCopier::quiesce(int device, StreamHandle stream) {
  return transfer::quiesce(driver_, device, stream);
}

Status ChunkCopier::copy(const ChunkHop& chunk, KernelBuffers* buffers, Bytes* enqueued,
                         bool* unsure) {
  const Bytes bytes = chunk.range.bytes();
  if (chunk.from != 0 && chunk.to != 0) {
    Status s = copy_one(chunk, chunk.to, chunk.from, bytes);
    if (s.ok()) *enqueued = bytes;
    return s;
  }
  chunk.request.parts.pieces(chunk.range, &pieces_);
  for (Piece& piece : pieces_) {
    const Bytes inside = piece.offset - chunk.range.begin;
    if (chunk.to != 0) piece.dst = chunk.to + inside;
    if (chunk.from != 0) piece.src = chunk.from + inside;
  }
  if (pieces_.size() > 1) {
    const Status s = copy_together(chunk, buffers, unsure);
    if (s.ok() || *unsure) *enqueued = bytes;
    if (!s.not_supported()) return s;
  }
  for (size_t i = 0; i < pieces_.size();) {
    const Piece& piece = pieces_[i];
    size_t count = chunk.request.in_rows ? row_count(i) : 1;
    Status s = count > 1 ? copy_rows(chunk, i, count) : driver_.unsupported();
    if (s.not_supported()) {
      count = 1;
      s = copy_one(chunk, piece.dst, piece.src, piece.bytes);
    }
    if (!s.ok()) return s;
    *enqueued += count * piece.bytes;
    i += count;
  }
  return {};
}

// How many pieces from `first` on are equally long and lie at equal distances at both ends.
size_t ChunkCopier::row_count(size_t first) const {
  const Piece& from = pieces_[first];
  if (first + 1 == pieces_.size()) return 1;
  const Bytes dst = pieces_[first + 1].dst - from.dst, src = pieces_[first + 1].src - from.src;
  const auto fits = [&](Bytes pitch) { return pitch >= from.bytes && pitch <= Driver::kMostPitch; };
  if (!fits(dst) || !fits(src)) return 1;
  size_t count = 1;
  for (; first + count < pieces_.size(); ++count) {
    const Piece &piece = pieces_[first + count], &last = pieces_[first + count - 1];
    if (piece.bytes != from.bytes || piece.dst - last.dst != dst || piece.src - last.src != src) {
      break;
    }
  }
  return count;
}

Status ChunkCopier::copy_rows(const ChunkHop& chunk, size_t first, size_t count) {
  const Piece &piece = pieces_[first], &next = pieces_[first + 1];
  Driver::Rows rows;
  rows.dst = piece.dst;
  rows.src = piece.src;
  rows.dst_pitch = next.dst - piece.dst;
  rows.src_pitch = next.src - piece.src;
  rows.width = piece.bytes;
  rows.count = count;
  const Hop& hop = chunk.hop;
  return by_driver_between_gpus(hop)
             ? driver_.copy_peer_rows(rows, hop.to.gpu, hop.from.gpu, chunk.stream)
             : driver_.copy_rows(rows, chunk.stream);
}

// Whether the driver has both GPUs of the hop, so that it can name their contexts.
bool ChunkCopier::by_driver_between_gpus(const Hop& hop) const {
  return between_gpus(hop) && std::max(hop.from.gpu, hop.to.gpu) < devices_.count();
}

Status ChunkCopier::copy_one(const ChunkHop& chunk, Address dst, Address src, Bytes bytes) {
  const Hop& hop = chunk.hop;
  return by_driver_between_gpus(hop)
             ? driver_.copy_peer(dst, hop.to.gpu, src, hop.from.gpu, bytes, chunk.stream)
             : driver_.copy(dst, src, bytes, chunk.stream);
}

// Enqueues all pieces by one batch call, or by a kernel launch and at most one plain copy. Each of
// these calls enqueues all of its work or nothing. not_supported(): copies one by one are better,
// or nothing else is possible.
Status ChunkCopier::copy_together(const ChunkHop& chunk, KernelBuffers* buffers, bool* unsure) {
  const Hop& hop = chunk.hop;
  if (std::max(hop.from.gpu, hop.to.gpu) >= devices_.count()) return driver_.unsupported();
  const BlockCosts costs = block_costs(copy_ns_);
  BlockLoad load;
  for (const Piece& piece : pieces_) load.add(piece.bytes, costs);
  const bool batches = !between_gpus(hop) && driver_.has_batches();
  BlockWay way = best_way(load, chunk.link, costs, batches, !chunk.request.by_socket);
  if (way == BlockWay::kKernel) {
    const Status s = copy_by_kernel(chunk, buffers, unsure);
    if (!s.not_supported()) return s;
    way = best_way(load, chunk.link, costs, batches, false);
  }
  if (way == BlockWay::kSingly) return driver_.unsupported();
  dsts_.clear();
  srcs_.clear();
  sizes_.clear();
  for (const Piece& piece : pieces_) {
    dsts_.push_back(piece.dst);
    srcs_.push_back(piece.src);
    sizes_.push_back(piece.bytes);
  }
  return driver_.copy_batch(dsts_.data(), srcs_.data(), sizes_.data(), pieces_.size(),
                            chunk.stream);
}

// Whether a kernel on the GPU that works for this hop reaches all of its pieces. A wrong access
// would end its context. So the kernel gets only memory that the driver was asked about. A peer's
// memory that is not glake's own buffer is asked about once more.
bool ChunkCopier::kernel_reaches(const ChunkHop& chunk) {
  const Hop& hop = chunk.hop;
  if (!chunk.request.known) return false;
  if (!kernel_.ready(ChunkHop::device_of(hop))) return false;
  if (!between_gpus(hop)) return true;
  if (!devices_.reach(hop)) return false;
  const auto accessible = [&](Address first, Address last) {
    return driver_.accessible(first) && driver_.accessible(last);
  };
  const Piece &first = pieces_.front(), &last = pieces_.back();
  if (hop.reads) return chunk.from != 0 || accessible(first.src, last.src);
  return chunk.to != 0 || accessible(first.dst, last.dst);
}

// Makes one launch. If the pieces are adjacent at the host's end, a plain copy carries them over
// the link, from or to a buffer beside the blocks.
Status ChunkCopier::copy_by_kernel(const ChunkHop& chunk, KernelBuffers* buffers, bool* unsure) {
  if (!kernel_reaches(chunk)) return driver_.unsupported();
  const Hop& hop = chunk.hop;
  const int gpu = ChunkHop::device_of(hop);
  const Bytes bytes = chunk.range.bytes();
  const bool staged = (hop.from.host() || hop.to.host()) &&
                      better_staged(bytes, chunk.link, block_costs(copy_ns_)) &&
                      side_by_side(hop.from.host());
  try {
    buffers->table =
        slots_.lend(Place{}, pieces_.size() * sizeof(CopyBlock), TransferTuning::kLeastTable);
    if (staged) buffers->bounce = slots_.lend(Place{gpu}, bytes);
  } catch (const Error&) {
    buffers->table.reset();
    return driver_.unsupported();  // without room for the table, the chunk is copied as a batch
  }
  auto* table = reinterpret_cast<CopyBlock*>(buffers->table.at());
  for (const Piece& piece : pieces_) {
    const Address buffer = buffers->bounce.at() + piece.offset - chunk.range.begin;
    *table++ = {staged && hop.to.host() ? buffer : piece.dst,
                staged && hop.from.host() ? buffer : piece.src, piece.bytes};
  }
  Status s;
  const Address bounce = buffers->bounce.at();
  if (staged && hop.from.host()) {
    s = driver_.copy(bounce, pieces_.front().src, bytes, chunk.stream);
  }
  if (s.ok()) {
    s = kernel_.launch(gpu, buffers->table.at(), pieces_.size(), chunk.stream);
  }
  if (s.ok() && staged && hop.to.host()) {
    s = driver_.copy(pieces_.front().dst, bounce, bytes, chunk.stream);
  }
  if (s.ok()) return s;
  // Part of the work may be under way. Its buffers may go to another chunk only when that has
  // ended.
  *unsure = !quiesce(gpu, chunk.stream);
  if (*unsure) return s;
  buffers->table.reset();
  buffers->bounce.reset();
  return s;
}

bool ChunkCopier::side_by_side(bool at_source) const {
  for (size_t i = 1; i < pieces_.size(); ++i) {
    const Piece &before = pieces_[i - 1], &piece = pieces_[i];
    const Address end = (at_source ? before.src : before.dst) + before.bytes;
    if (end != (at_source ? piece.src : piece.dst)) return false;
  }
  return true;
}

}  // namespace glake::transfer
