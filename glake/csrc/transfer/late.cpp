// Copies that are late, or of whose end nobody tells: what becomes of their chunks and buffers.
#include <algorithm>

#include "transfer/engine.h"
#include "transfer/submitter.h"

namespace glake::transfer {
namespace {

constexpr uint64_t kLastChance = 2'000'000'000;  // ns for a late one that writes the destination

}  // namespace

// A copy is late by any measure. Before the last one the chunk goes over another path, and its
// buffers stay with the copy. The last one writes the destination: it must not be overtaken.
void Submitter::overdue(size_t index, uint64_t now) {
  Flight& flight = flights_[index];
  const std::string why = "copy " + std::to_string(flight.hop + 1) + " of " + flight.lane->name() +
                          " is not done in three times the time it should take";
  Lock lock(engine_.mutex_);
  if (flight.last() && !flight.late) {
    flight.late = true;
    flight.lane->health->suspect(why);
    flight.deadline = flight.expected = now + kLastChance;
    return;
  }
  Flight lost = std::move(flight);
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(index));
  lock.unlock();
  streams_.abandon(lost.stream);
  lock.lock();
  give_up(&lock, std::move(lost), why);
}

// Nobody knows when the copy ends: its buffers stay with it until that is seen, and what it writes
// of the destination may come at any time. Under the engine's lock.
void Submitter::give_up(Lock* lock, Flight flight, const std::string& why) {
  Lane& lane = *flight.lane;
  lane.hops[flight.hop].withdraw(flight.range.bytes());
  if (flight.hop == 0) --lane.in_first_hop;
  if (flight.last()) {
    drop_chunk(&flight, why);
    flight.transfer->unknown.push_back(flight.range);
    flight.transfer->fail(GLAKE_COPY_FAILED, why);
  } else {
    return_chunk(&flight, why);
  }
  const std::shared_ptr<Transfer> transfer = flight.transfer;
  lost_.push_back(std::move(flight));
  engine_.conclude(lock, transfer);
}

// Gives the buffers of lost copies back once those are done after all.
void Submitter::reap(uint64_t timeout_ns) {
  auto over = [&](const Flight& flight) {
    if (!flight.marked) return quiesce(flight);
    const Status s = driver_.wait_event(flight.event.id(), timeout_ns);
    return s.ok() || (!s.not_ready() && (!flight.unsure || quiesce(flight)));
  };
  lost_.erase(std::remove_if(lost_.begin(), lost_.end(), over), lost_.end());
}

}  // namespace glake::transfer
