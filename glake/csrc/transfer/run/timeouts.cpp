// Copies that are late, or of whose end nobody tells: what becomes of their chunks and buffers.
#include <algorithm>
#include <iterator>

#include "transfer/run/submitter.h"

namespace glake::transfer {
namespace {

constexpr uint64_t kAskAgain = 100'000;          // ns between two questions to the service
constexpr uint64_t kLastChance = 2'000'000'000;  // ns for a late one that writes the destination

}  // namespace

// A copy is late by any measure. Before the last one the chunk goes over another path, and its
// buffers stay with the copy. The last one writes the destination: it must not be overtaken.
void Submitter::handle_overdue(size_t index, uint64_t now) {
  Flight& flight = flights_[index];
  const std::string why =
      "copy " + std::to_string(flight.hop + 1) + " of " + flight.run->name() +
      (flight.overdue
           ? " stands still, and as it writes the destination no other may take its place"
           : " is not done in three times the time it should take");
  Lock lock(tools_.mutex);
  if (flight.last() && !flight.overdue) {
    flight.overdue = true;
    flight.run->health->suspect(why);
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

// Nobody knows when the copy ends: its buffers stay with it until that is seen, what it writes of
// the destination may come at any time, and the memory of both ends must not become another's.
// Under the lock.
void Submitter::give_up(Lock* lock, Flight flight, const std::string& why) {
  const std::shared_ptr<Transfer> transfer = flight.transfer;
  lock->unlock();
  listener_.given_up(transfer);
  lock->lock();
  PathRun& run = *flight.run;
  run.hops[flight.hop].withdraw(flight.range.bytes());
  if (flight.hop == 0) --run.in_first_hop;
  if (flight.last()) {
    drop_chunk(&flight, why);
    transfer->unknown.add(flight.range);
    transfer->fail(GLAKE_COPY_FAILED, why);
  } else {
    return_chunk(&flight, why);
  }
  flight.lost = ++losses_;
  ++transfer->unfinished;
  run.health->lose();
  lost_.push_back(std::move(flight));
  listener_.chunk_ended(lock, transfer);
}

// Under the lock, on any thread. Without it while the driver is asked: a simulated one may
// run callers' functions meanwhile, among them ours that take it. Buffers go back on the
// submitter's thread when it next has nothing to do; there, too, it waits for streams where no
// event tells.
bool Submitter::look_for_lost(Lock* lock) {
  std::vector<std::pair<uint64_t, EventId>> asked;
  bool untold = false;
  for (const Flight& flight : lost_) {
    if (flight.seen_done) continue;
    if (flight.remote) {
      untold = true;  // it is asked on this submitter's thread
      continue;
    }
    if (flight.marked) asked.emplace_back(flight.lost, flight.event.id());
    untold = untold || !flight.marked;
  }
  if (asked.empty()) return untold;
  lock->unlock();
  const auto open = [&](const auto& one) {
    const Status s = driver_.query(one.second);
    untold = untold || !(s.ok() || s.not_ready());
    return !s.ok();
  };
  asked.erase(std::remove_if(asked.begin(), asked.end(), open), asked.end());
  lock->lock();
  for (Flight& flight : lost_) {
    const auto it = [&](const auto& one) { return one.first == flight.lost; };
    if (!flight.seen_done && std::any_of(asked.begin(), asked.end(), it)) found(&flight);
  }
  return untold;
}

// Under the lock.
void Submitter::found(Flight* flight) {
  flight->seen_done = true;
  if (flight->transfer == nullptr) return;
  --flight->transfer->unfinished;
  flight->run->health->find(driver_.now_ns());
}

// Gives the buffers of lost copies back once those are done after all.
void Submitter::reap(uint64_t timeout_ns) {
  std::vector<Flight> open, done;
  {
    Lock lock(tools_.mutex);
    open.swap(lost_);
  }
  const auto over = [&](const Flight& flight) {
    if (flight.seen_done) return true;
    if (flight.remote) {
      const uint64_t end = driver_.now_ns() + timeout_ns;
      std::string why;
      while (RemoteGpus::state(flight.remote, &why) == RemoteCopy::State::kUnderWay) {
        if (driver_.now_ns() >= end) return false;
        driver_.wait_any({}, kAskAgain);
      }
      return true;
    }
    if (!flight.marked) return quiesce(flight);
    const Status s = driver_.wait_event(flight.event.id(), timeout_ns);
    return s.ok() || (!s.not_ready() && quiesce(flight));
  };
  const auto first = std::stable_partition(open.begin(), open.end(),
                                           [&](const Flight& flight) { return !over(flight); });
  done.assign(std::make_move_iterator(first), std::make_move_iterator(open.end()));
  open.erase(first, open.end());
  Lock lock(tools_.mutex);
  for (Flight& flight : done) {
    if (!flight.seen_done) found(&flight);
  }
  for (Flight& flight : open) lost_.push_back(std::move(flight));
}

}  // namespace glake::transfer
