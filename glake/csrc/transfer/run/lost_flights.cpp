#include "transfer/run/lost_flights.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/transfer_tuning.h"

namespace glake::transfer {
void LostFlights::add(Flight flight) {
  flight.lost = ++count_;
  if (flight.transfer != nullptr) book_.lose(flight);
  flights_.push_back(std::move(flight));
}

std::vector<Flight> LostFlights::take() { return std::exchange(flights_, {}); }

// Called under the lock, on any thread. It releases the lock while the driver is asked, because a
// simulated driver may then run callers' functions, and glake's own that take the lock. The
// submitter's thread gives buffers back when it next has nothing to do. It also waits for streams
// for which there is no event.
bool LostFlights::look(ChunkBook::Lock* lock) {
  std::vector<std::pair<uint64_t, EventId>> asked;
  bool untold = false;
  for (const Flight& flight : flights_) {
    if (flight.seen_done) continue;
    if (flight.remote) {
      untold = true;  // this submitter's thread asks about it
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
  for (Flight& flight : flights_) {
    const auto it = [&](const auto& one) { return one.first == flight.lost; };
    if (!flight.seen_done && std::any_of(asked.begin(), asked.end(), it)) found(&flight);
  }
  return untold;
}

// Called under the lock.
void LostFlights::found(Flight* flight) {
  flight->seen_done = true;
  if (flight->transfer != nullptr) book_.find(*flight);
}

// Gives the buffers of lost copies back once those are done after all.
void LostFlights::reap(uint64_t timeout_ns) {
  std::vector<Flight> open, done;
  {
    const ChunkBook::Lock lock = book_.lock();
    open.swap(flights_);
  }
  const auto over = [&](const Flight& flight) {
    if (flight.seen_done) return true;
    if (flight.remote) {
      const uint64_t end = driver_.now_ns() + timeout_ns;
      std::string why;
      while (RemoteGpus::state(flight.remote, &why) == RemoteCopy::State::kUnderWay) {
        if (driver_.now_ns() >= end) return false;
        driver_.wait_any({}, TransferTuning::kAskAgain);
      }
      return true;
    }
    if (!flight.marked) return copier_.quiesce(flight);
    const Status s = driver_.wait_event(flight.event.id(), timeout_ns);
    return s.ok() || (!s.not_ready() && copier_.quiesce(flight));
  };
  const auto first = std::stable_partition(open.begin(), open.end(),
                                           [&](const Flight& flight) { return !over(flight); });
  done.assign(std::make_move_iterator(first), std::make_move_iterator(open.end()));
  open.erase(first, open.end());
  const ChunkBook::Lock lock = book_.lock();
  for (Flight& flight : done) {
    if (!flight.seen_done) found(&flight);
  }
  for (Flight& flight : open) flights_.push_back(std::move(flight));
}

}  // namespace glake::transfer
