// What a submitter asks the driver for: one hop of a chunk.
#include "transfer/engine.h"
#include "transfer/submitter.h"

namespace glake::transfer {

// The device whose copy engine does the work: the one that has the bytes, which pushes them, except
// where they come from the host.
static int engine_of(const Hop& hop) { return hop.from.host() ? hop.to.gpu : hop.from.gpu; }

Status Submitter::enqueue(Flight* flight, Bytes* enqueued) {
  const int device = engine_of(flight->step());
  flight->seen_done = false;
  DeviceScope scope(driver_, device);
  Status s = scope.status();
  if (s.ok()) s = streams_.next(device, flight->step(), flight->alone, &flight->stream);
  if (s.ok()) s = streams_.event(device, &flight->event);
  if (!s.ok()) return s;
  s = copy_pieces(*flight, enqueued);
  if (*enqueued == 0) return s;
  const Status marked = driver_.record(device, flight->event.id(), flight->stream);
  if (marked.ok()) return s;
  // Without the event only a wait for the stream tells when the copies are done.
  const Status waited = driver_.synchronize_stream(device, flight->stream);
  flight->seen_done = waited.ok();
  if (waited.ok()) return s;
  driver_.synchronize(device);
  flight->seen_done = true;
  return s.ok() ? waited : s;
}

// The copies of one hop: a chunk is whole in a buffer, and in pieces at the transfer's own ends.
Status Submitter::copy_pieces(const Flight& flight, Bytes* enqueued) {
  const Request& request = flight.transfer->request;
  const Hop& hop = flight.step();
  const bool first = flight.hop == 0, last = flight.last();
  Address from = first ? 0 : flight.slots[flight.hop - 1].at();
  Address to = last ? 0 : flight.slots[flight.hop].at();
  if (flight.stage && first && request.src.host()) from = flight.stage.at();
  if (flight.stage && last && request.dst.host()) to = flight.stage.at();
  const bool peers = !hop.from.host() && !hop.to.host() && hop.from.gpu != hop.to.gpu;
  auto one = [&](Address dst, Address src, Bytes bytes) {
    return peers ? driver_.copy_peer(dst, hop.to.gpu, src, hop.from.gpu, bytes, flight.stream)
                 : driver_.copy(dst, src, bytes, flight.stream);
  };
  if (from != 0 && to != 0) {
    Status s = one(to, from, flight.range.bytes());
    if (s.ok()) *enqueued = flight.range.bytes();
    return s;
  }
  request.parts.pieces(flight.range, &pieces_);
  dsts_.clear();
  srcs_.clear();
  sizes_.clear();
  for (const Piece& piece : pieces_) {
    const Bytes inside = piece.offset - flight.range.begin;
    dsts_.push_back(to != 0 ? to + inside : piece.dst);
    srcs_.push_back(from != 0 ? from + inside : piece.src);
    sizes_.push_back(piece.bytes);
  }
  if (pieces_.size() > 1 && !peers) {
    Status s = driver_.copy_batch(dsts_.data(), srcs_.data(), sizes_.data(), pieces_.size(),
                                  flight.stream);
    if (s.ok()) *enqueued = flight.range.bytes();
    if (!s.not_supported()) return s;
  }
  for (size_t i = 0; i < pieces_.size(); ++i) {
    Status s = one(dsts_[i], srcs_[i], sizes_[i]);
    if (!s.ok()) return s;
    *enqueued += sizes_[i];
  }
  return {};
}

}  // namespace glake::transfer
