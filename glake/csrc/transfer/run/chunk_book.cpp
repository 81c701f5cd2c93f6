#include "transfer/run/chunk_book.h"

#include <algorithm>
#include <utility>

#include "base/transfer_tuning.h"
#include "transfer/run/run_state.h"

namespace glake::transfer {

ChunkBook::Lock ChunkBook::lock() { return state_.lock(); }

Bytes ChunkBook::allowance(const Transfer& transfer, const PathRun& run, uint64_t now) const {
  return transfer.allowance(run, now, copy_ns_);
}

Bytes ChunkBook::ready(const Transfer& transfer, PathRun& run, uint64_t now) const {
  const Bytes bytes = allowance(transfer, run, now);
  return bytes == 0 || run.hops.front().moment(now, copy_ns_) > now ? 0 : bytes;
}

uint64_t ChunkBook::next_chance(const PathRun& run) const {
  const HopMeter& hop = run.hops.front();
  return std::max(hop.earliest_start(copy_ns_), hop.asked_until(copy_ns_));
}

Flight ChunkBook::take(const TransferPtr& transfer, PathRun* run, Bytes bytes, uint64_t now) {
  Flight flight;
  flight.transfer = transfer;
  flight.run = run;
  flight.range = transfer->take(*run, bytes);
  run->claimed += flight.range.bytes();
  run->ramp =
      std::min(TransferTuning::ramped(std::max(bytes, run->ramp)), TransferTuning::kMostDirect);
  ++run->in_flight;
  ++run->in_first_hop;
  ++transfer->in_flight;
  run->begin_watch(now);
  if (!std::exchange(transfer->begun, true)) transfer->started_ns = now;
  return flight;
}

uint64_t ChunkBook::moment(const Flight& flight, uint64_t now) const {
  return flight.run->hops[flight.hop].moment(now, copy_ns_);
}

void ChunkBook::aim(Flight* flight) const {
  const HopMeter& hop = flight->run->hops[flight->hop];
  flight->alone = flight->run->alone(flight->hop, flight->range.bytes(), copy_ns_);
  flight->link = hop.link();
  flight->flows = hop.worker().flows;
}

void ChunkBook::shorten(Flight* flight, Bytes enqueued, const std::string& why) {
  PathRun& run = *flight->run;
  if (flight->hop == 0 && enqueued == 0) --run.in_first_hop;
  Flight rest;
  rest.transfer = flight->transfer;
  rest.run = flight->run;
  rest.range = {flight->range.begin + enqueued, flight->range.end};
  run.in_flight += enqueued != 0;
  rest.transfer->in_flight += enqueued != 0;
  give_back(rest, why);
  flight->range.end = rest.range.begin;
}

void ChunkBook::submit(Flight* flight, uint64_t now) {
  flight->expected = flight->run->hops[flight->hop].submit(now, flight->range.bytes(), copy_ns_);
  flight->deadline =
      now + TransferTuning::kLate * (flight->expected - now) + TransferTuning::kGrace;
}

void ChunkBook::suspect(const Flight& flight, const std::string& why) {
  flight.run->health->suspect(why);
}

void ChunkBook::complete(const Flight& flight, uint64_t now) {
  if (flight.hop == 0) --flight.run->in_first_hop;
  flight.run->hops[flight.hop].complete(now, flight.range.bytes(), copy_ns_);
}

void ChunkBook::land(const Flight& flight) {
  PathRun& run = *flight.run;
  flight.transfer->landed.add(flight.range);
  run.landed += flight.range.bytes();
  ++run.chunks;
  --run.in_flight;
  --flight.transfer->in_flight;
  run.health->succeed();
}

// With pageable memory or checksums the host itself may be slow, which says nothing of a link.
int ChunkBook::slow_hop(const Flight& flight, uint64_t now) {
  const Request& request = flight.transfer->request;
  const bool links_alone = !request.pageable && (request.flags & kChecksum) == 0;
  return links_alone ? flight.run->slow_hop(now) : -1;
}

void ChunkBook::refuse(const Flight& flight, const std::string& why) {
  if (!why.empty()) flight.transfer->close_run(flight.run, why);
  --flight.run->in_first_hop;
  give_back(flight, "");
}

void ChunkBook::fail(const Flight& flight, const std::string& why) {
  if (flight.hop == 0) --flight.run->in_first_hop;
  flight.run->hops[flight.hop].withdraw(flight.range.bytes());
  give_back(flight, why);
}

void ChunkBook::give_up(const Flight& flight, const std::string& why) {
  if (!flight.last()) return fail(flight, why);
  if (flight.hop == 0) --flight.run->in_first_hop;
  flight.run->hops[flight.hop].withdraw(flight.range.bytes());
  drop(flight, why);
  // The copy may still write to the destination at any time.
  flight.transfer->unknown.add(flight.range);
  flight.transfer->fail(GLAKE_COPY_FAILED, why);
}

void ChunkBook::lose(const Flight& flight) {
  ++flight.transfer->unfinished;
  flight.run->health->lose();
}

void ChunkBook::find(const Flight& flight) {
  --flight.transfer->unfinished;
  flight.run->health->find(driver_.now_ns());
}

// The chunk has not arrived. Its bytes are taken again, by this run or another.
void ChunkBook::give_back(const Flight& flight, const std::string& why) {
  flight.transfer->give_back(flight.range);
  drop(flight, why);
}

// The run is done with the chunk. `why` says why the chunk failed; "": it did not.
void ChunkBook::drop(const Flight& flight, const std::string& why) {
  PathRun& run = *flight.run;
  run.claimed -= flight.range.bytes();
  --run.in_flight;
  --flight.transfer->in_flight;
  if (why.empty()) return;
  flight.transfer->count_failure(&run);
  run.health->fail(driver_.now_ns(), why);
}

}  // namespace glake::transfer
