// What a submitter asks the driver for: one hop of a chunk.
#include "plan/block_ways.h"
#include "transfer/run/submitter.h"

namespace glake::transfer {

// The device whose copy engine does the work: the one that has the bytes, which pushes them, except
// where they come from the host.
static int engine_of(const Hop& hop) { return hop.from.host() ? hop.to.gpu : hop.from.gpu; }

static bool between_gpus(const Hop& hop) {
  return !hop.from.host() && !hop.to.host() && hop.from.gpu != hop.to.gpu;
}

constexpr Bytes kLeastTable = 4 * kKiB;

Status Submitter::enqueue(Flight* flight, Bytes* enqueued) {
  const int device = flight->device = engine_of(flight->step());
  flight->seen_done = flight->marked = false;
  DeviceScope scope(driver_, device);
  Status s = scope.status();
  if (s.ok()) {
    s = streams_.next(device, flight->step(), flight->flows, flight->alone, &flight->stream);
  }
  if (s.ok()) s = streams_.event(device, &flight->event);
  if (!s.ok()) return s;
  s = copy_pieces(flight, enqueued);
  if (*enqueued == 0) return s;
  const Status marked = driver_.record(device, flight->event.id(), flight->stream);
  flight->marked = marked.ok();
  if (marked.ok()) return s;
  // Without the event only a wait for the stream tells when the copies are done.
  flight->seen_done = quiesce(*flight);
  flight->unsure = !flight->seen_done;
  return s.ok() && flight->unsure ? marked : s;
}

// The copies of one hop: a chunk is whole in a buffer, and in pieces at the transfer's own ends.
Status Submitter::copy_pieces(Flight* flight, Bytes* enqueued) {
  const Request& request = flight->transfer->request;
  const bool first = flight->hop == 0, last = flight->last();
  Address from = first ? 0 : flight->slots[flight->hop - 1].at();
  Address to = last ? 0 : flight->slots[flight->hop].at();
  if (flight->stage && first && request.src.host()) from = flight->stage.at();
  if (flight->stage && last && request.dst.host()) to = flight->stage.at();
  if (from != 0 && to != 0) {
    Status s = copy_one(*flight, to, from, flight->range.bytes());
    if (s.ok()) *enqueued = flight->range.bytes();
    return s;
  }
  request.parts.pieces(flight->range, &pieces_);
  for (Piece& piece : pieces_) {
    const Bytes inside = piece.offset - flight->range.begin;
    if (to != 0) piece.dst = to + inside;
    if (from != 0) piece.src = from + inside;
  }
  if (pieces_.size() > 1) {
    const Status s = copy_together(flight);
    if (s.ok() || flight->unsure) *enqueued = flight->range.bytes();
    if (!s.not_supported()) return s;
  }
  for (const Piece& piece : pieces_) {
    Status s = copy_one(*flight, piece.dst, piece.src, piece.bytes);
    if (!s.ok()) return s;
    *enqueued += piece.bytes;
  }
  return {};
}

Status Submitter::copy_one(const Flight& flight, Address dst, Address src, Bytes bytes) {
  const Hop& hop = flight.step();
  return between_gpus(hop)
             ? driver_.copy_peer(dst, hop.to.gpu, src, hop.from.gpu, bytes, flight.stream)
             : driver_.copy(dst, src, bytes, flight.stream);
}

// All pieces in one call, or in two that are all done or not begun; not_supported(): one by one is
// better, or all there is.
Status Submitter::copy_together(Flight* flight) {
  const Hop& hop = flight->step();
  const BlockCosts costs = block_costs(tools_.copy_ns);
  BlockLoad load;
  for (const Piece& piece : pieces_) load.add(piece.bytes, costs);
  const bool batches = !between_gpus(hop) && driver_.has_batches();
  BlockWay way = best_way(load, flight->link, costs, batches, true);
  if (way == BlockWay::kKernel) {
    const Status s = copy_by_kernel(flight);
    if (!s.not_supported()) return s;
    way = best_way(load, flight->link, costs, batches, false);
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
                            flight->stream);
}

// Whether a kernel on the GPU that works for this hop reaches all of its pieces. An access it has
// not would end its context: it is given nothing the driver has not been asked about, and a peer's
// memory is asked about once more where it is not our own buffer.
bool Submitter::kernel_reaches(const Flight& flight) {
  const Hop& hop = flight.step();
  if (!flight.transfer->request.known) return false;
  if (!tools_.kernel.ready(engine_of(hop))) return false;
  if (!between_gpus(hop)) return true;
  if (!tools_.devices.reach(hop.to.gpu, hop.from.gpu)) return false;
  if (!flight.last()) return true;
  return driver_.accessible(pieces_.front().dst) && driver_.accessible(pieces_.back().dst);
}

// One launch. Where the pieces lie side by side at the host's end, a plain copy carries them over
// the link, from or to a buffer beside the blocks.
Status Submitter::copy_by_kernel(Flight* flight) {
  if (!kernel_reaches(*flight)) return driver_.unsupported();
  const Hop& hop = flight->step();
  const int gpu = engine_of(hop);
  const Bytes bytes = flight->range.bytes();
  const bool staged = (hop.from.host() || hop.to.host()) &&
                      better_staged(bytes, flight->link, block_costs(tools_.copy_ns)) &&
                      side_by_side(hop.from.host());
  try {
    flight->table = tools_.slots.lend(Place{}, pieces_.size() * sizeof(CopyBlock), kLeastTable);
    if (staged) flight->bounce = tools_.slots.lend(Place{gpu}, bytes);
  } catch (const Error&) {
    flight->table.reset();
    return driver_.unsupported();  // without room for it the chunk goes as a batch does
  }
  auto* table = reinterpret_cast<CopyBlock*>(flight->table.at());
  for (const Piece& piece : pieces_) {
    const Address buffer = flight->bounce.at() + piece.offset - flight->range.begin;
    *table++ = {staged && hop.to.host() ? buffer : piece.dst,
                staged && hop.from.host() ? buffer : piece.src, piece.bytes};
  }
  Status s;
  const Address bounce = flight->bounce.at();
  if (staged && hop.from.host()) {
    s = driver_.copy(bounce, pieces_.front().src, bytes, flight->stream);
  }
  if (s.ok()) {
    s = tools_.kernel.launch(gpu, flight->table.at(), pieces_.size(), flight->stream);
  }
  if (s.ok() && staged && hop.to.host()) {
    s = driver_.copy(pieces_.front().dst, bounce, bytes, flight->stream);
  }
  if (s.ok()) return s;
  // Part of it may be under way, in buffers that go to another chunk.
  flight->unsure = !quiesce(*flight);
  if (flight->unsure) return s;
  flight->table.reset();
  flight->bounce.reset();
  return s;
}

bool Submitter::side_by_side(bool at_source) const {
  for (size_t i = 1; i < pieces_.size(); ++i) {
    const Piece &before = pieces_[i - 1], &piece = pieces_[i];
    const Address end = (at_source ? before.src : before.dst) + before.bytes;
    if (end != (at_source ? piece.src : piece.dst)) return false;
  }
  return true;
}

}  // namespace glake::transfer
