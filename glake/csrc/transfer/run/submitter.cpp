#include "transfer/run/submitter.h"

#include <pthread.h>

#include <algorithm>
#include <set>

#include "base/transfer_tuning.h"

namespace glake::transfer {
Submitter::Submitter(const SubmitterTools& tools, ChunkListener& listener, int gpu)
    : tools_(tools),
      book_(tools_.book),
      listener_(listener),
      driver_(tools.driver),
      gpu_(gpu),
      streams_(driver_),
      copier_(tools_, streams_),
      lost_(tools_, copier_),
      sums_(tools_, streams_, copier_, lost_) {
  thread_ = std::thread([this] { run(); });
}

Submitter::~Submitter() {
  if (thread_.joinable()) stop();
}

void Submitter::add(const TransferPtr& transfer, PathRun* run) {
  for (const Entry& entry : entries_) {
    if (entry.run == run) return;
  }
  entries_.push_back({transfer, run, 0});
}

void Submitter::remove(const Transfer* transfer) {
  auto ended = [&](const Entry& entry) { return entry.transfer.get() == transfer; };
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(), ended), entries_.end());
}

void Submitter::wake() {
  if (awake_) return;
  awake_ = true;
  driver_.expect_threads(1);
  woken_.notify_one();
}

bool Submitter::wanted(uint64_t now) const {
  if (awake_) return false;
  return lost_.any() || std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
           return book_.allowance(*entry.transfer, *entry.run, now) != 0;
         });
}

std::string Submitter::stop() {
  {
    Lock lock = book_.lock();
    stopping_ = true;
    woken_.notify_one();
  }
  thread_.join();
  return left_;
}

void Submitter::run() {
  const std::string name = "glake-copy-" + std::to_string(gpu_);
  pthread_setname_np(pthread_self(), name.c_str());
  Lock lock = book_.lock();
  doze(&lock);
  while (!stopping_) {
    if (lost_.any()) lost_.look(&lock);  // their paths may be used again
    Flight flight;
    if (claim(&flight, driver_.now_ns())) {
      lock.unlock();
      begin(std::move(flight));
      lock.lock();
    } else if (!flights_.empty() || crowded_ || next_moment(driver_.now_ns()) != UINT64_MAX) {
      lock.unlock();
      wait();
      lock.lock();
    } else {
      rest(&lock);
      doze(&lock);
    }
  }
  if (awake_) rest(&lock);
  lock.unlock();
  std::string left = end();
  lock.lock();
  left_ = std::move(left);
}

// The buffers of copies that may never end are not given back.
std::string Submitter::end() {
  lost_.reap(TransferTuning::kFarewell);
  Lock lock = book_.lock();
  std::vector<Flight> lost = lost_.take();
  lock.unlock();
  std::set<std::string> names;
  for (Flight& flight : lost) {
    for (Slot& slot : flight.slots) slot.abandon();
    for (Slot* slot : {&flight.stage, &flight.kernel.table, &flight.kernel.bounce}) slot->abandon();
    const bool reads_back = flight.transfer == nullptr;
    names.insert(reads_back
                     ? "a checksum's on " + device_text(flight.device)
                     : "copy " + std::to_string(flight.hop + 1) + " of " + flight.run->name());
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  if (!text.empty()) text = "copies that were given up are still not done: " + text;
  if (!streams_.close() && text.empty()) {
    text = "the driver refused to take streams and events of " + device_text(gpu_) + " back";
  }
  return text;
}

// The thread has nothing to do. Virtual time need not wait for it.
void Submitter::rest(Lock* lock) {
  awake_ = false;
  const bool lost = lost_.any();
  lock->unlock();
  if (lost) lost_.reap(0);
  driver_.thread_at_work(false);
  lock->lock();
}

void Submitter::doze(Lock* lock) {
  woken_.wait(*lock, [&] { return awake_ || stopping_; });
  if (!awake_) return;
  lock->unlock();
  driver_.thread_at_work(true, gpu_);
  lock->lock();
}

// Of the runs that may take a chunk now, the one whose last chunk is the oldest takes one. A run
// that must wait keeps its turn.
bool Submitter::claim(Flight* flight, uint64_t now) {
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const Entry& a, const Entry& b) { return a.turn < b.turn; });
  crowded_ = false;
  for (Entry& entry : entries_) {
    PathRun& run = *entry.run;
    Bytes bytes = book_.ready(*entry.transfer, run, now);
    if (bytes == 0) continue;
    if (!copier_.has_room(run, bytes)) {
      crowded_ = true;
      continue;
    }
    if (tools_.remote.on_way(run.planned.path)) {
      bytes = std::min(bytes, TransferTuning::kMostRemote);
    }
    entry.turn = ++turns_;
    *flight = book_.take(entry.transfer, &run, bytes, now);
    return true;
  }
  return false;
}

// Takes buffers for the chunk's whole way, so that it never waits half way for one. A path that
// cannot have them is closed. That is no fault of its links.
void Submitter::begin(Flight flight) {
  try {
    copier_.outfit(&flight);
  } catch (const std::exception& e) {
    const auto* const error = dynamic_cast<const Error*>(&e);
    // Another thread took the last room in a buffer of the relay service. The chunk waits for room.
    crowded_ = error != nullptr && error->code() == GLAKE_OUT_OF_MEMORY &&
               tools_.remote.on_way(flight.run->planned.path);
    Lock lock = book_.lock();
    book_.refuse(flight, crowded_ ? "" : e.what());
    lock.unlock();
    flight.slots.clear();
    flight.stage.reset();
    lock.lock();
    listener_.chunk_ended(&lock, flight.transfer);
    return;
  }
  launch(std::move(flight));
}

// Whether the chunk's next copy waits for a better moment.
bool Submitter::park(Flight* flight) {
  Lock lock = book_.lock();
  const uint64_t now = driver_.now_ns();
  const uint64_t until = book_.moment(*flight, now);
  if (until <= now) return false;
  flight->parked_until = until;
  flights_.push_back(std::move(*flight));
  return true;
}

// Submits the chunk's next copy.
void Submitter::launch(Flight flight) {
  flight.parked_until = 0;
  {
    const Lock lock = book_.lock();
    book_.aim(&flight);
  }
  Bytes enqueued = 0;
  const Status status = copier_.start(&flight, &enqueued);
  const std::string why = status.ok() ? "" : copier_.failure(flight, status);
  Lock lock = book_.lock();
  const uint64_t now = driver_.now_ns();
  if (enqueued < flight.range.bytes()) book_.shorten(&flight, enqueued, why);
  if (enqueued == 0) {
    lock.unlock();
    const TransferPtr transfer = flight.transfer;
    flight = Flight{};  // its buffers go back before the transfer may end
    lock.lock();
    listener_.chunk_ended(&lock, transfer);
    return;
  }
  book_.submit(&flight, now);
  if (flight.unsure) return give_up(&lock, std::move(flight), why);
  if (flight.seen_done) flight.expected = now;
  flights_.push_back(std::move(flight));
}

// When the next chunk that waits for its moment may go on, or be taken. Callers hold the lock.
uint64_t Submitter::next_moment(uint64_t now) {
  uint64_t next = UINT64_MAX;
  for (const Entry& entry : entries_) {
    const uint64_t until = book_.next_chance(*entry.run);
    if (until > now) next = std::min(next, until);
  }
  for (Flight& flight : flights_) {
    if (flight.parked_until == 0) continue;
    flight.parked_until = book_.moment(flight, now);
    next = std::min(next, flight.parked_until);
  }
  return next;
}

// Waits until a copy is done, or overdue.
void Submitter::wait() {
  const uint64_t now = driver_.now_ns();
  Lock lock = book_.lock();
  uint64_t until = next_moment(now);
  lock.unlock();
  events_.clear();
  uint64_t expected = UINT64_MAX;
  for (const Flight& flight : flights_) {
    if (flight.parked_until != 0) continue;
    expected = std::min(expected, flight.expected);
    until = std::min(
        {until, flight.deadline, flight.overdue ? now + TransferTuning::kOverduePoll : UINT64_MAX});
    if (flight.seen_done) until = now;
    if (flight.remote) {
      until = std::min(until, now + TransferTuning::kAnswersLook);
    } else {
      events_.push_back(flight.event.id());
    }
  }
  if (crowded_) until = std::min(until, now + TransferTuning::kAnswersLook);
  // The wait's own status is not needed: the query of each copy below gives it again.
  if (until > now) driver_.wait_any(events_, until - now, expected);
  const uint64_t then = driver_.now_ns();
  for (size_t i = 0; i < flights_.size(); ++i) {
    if (flights_[i].parked_until != 0) {
      if (flights_[i].parked_until > then) continue;
      Flight flight = std::move(flights_[i]);
      flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(i));
      if (!park(&flight)) launch(std::move(flight));
      return;
    }
    Status status;
    if (!flights_[i].seen_done) status = copier_.ask(&flights_[i]);
    if (!status.not_ready()) {
      Flight flight = std::move(flights_[i]);
      flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(i));
      complete(std::move(flight), status);
      return;
    }
  }
  for (size_t i = 0; i < flights_.size(); ++i) {
    if (flights_[i].parked_until == 0 && then >= flights_[i].deadline)
      return handle_overdue(i, then);
  }
}

void Submitter::complete(Flight flight, Status status) {
  std::string why = status.ok() ? "" : copier_.failure(flight, status);
  if (!status.ok() && !copier_.quiesce(flight)) {
    flight.unsure = true;
    Lock lock = book_.lock();
    return give_up(&lock, std::move(flight), why);
  }
  if (status.ok()) copier_.bring_back(flight);
  flight.event.reset();
  flight.kernel = {};
  if (status.ok() && flight.last() && (flight.transfer->request.flags & kChecksum) != 0) {
    why = sums_.difference(flight);
  }
  const bool ends = !why.empty() || flight.last();
  if (ends) {
    flight.slots.clear();  // before the transfer may end
    flight.stage.reset();
  }
  Lock lock = book_.lock();
  if (!why.empty()) {
    book_.fail(flight, why);
    listener_.chunk_ended(&lock, flight.transfer);
    return;
  }
  const uint64_t now = driver_.now_ns();
  book_.complete(flight, now);
  if (!ends) {
    ++flight.hop;
    lock.unlock();
    if (!park(&flight)) launch(std::move(flight));
    return;
  }
  book_.land(flight);
  const int slow = book_.slow_hop(flight, now);
  if (slow >= 0) listener_.fell_behind(*flight.run, static_cast<size_t>(slow));
  listener_.chunk_ended(&lock, flight.transfer);
}

// A copy is late by any measure. If it is not the chunk's last copy, the chunk goes over another
// path, and its buffers stay with the late copy. The last copy writes the destination, so nothing
// may overtake it.
void Submitter::handle_overdue(size_t index, uint64_t now) {
  Flight& flight = flights_[index];
  const std::string why =
      "copy " + std::to_string(flight.hop + 1) + " of " + flight.run->name() +
      (flight.overdue
           ? " stands still, and may still write the destination: no other copy can replace it"
           : " is not done in three times the time it should take");
  Lock lock = book_.lock();
  if (flight.last() && !flight.overdue) {
    flight.overdue = true;
    book_.suspect(flight, why);
    flight.deadline = flight.expected = now + TransferTuning::kLastChance;
    return;
  }
  Flight lost = std::move(flight);
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(index));
  lock.unlock();
  streams_.abandon(lost.stream);
  lock.lock();
  give_up(&lock, std::move(lost), why);
}

// It is not known when the copy ends. Until its end is seen, its buffers stay with it, and it may
// write to the destination at any time. So the memory of both ends must not be freed for other
// owners. Callers hold the lock.
void Submitter::give_up(Lock* lock, Flight flight, const std::string& why) {
  const TransferPtr transfer = flight.transfer;
  lock->unlock();
  listener_.given_up(transfer);
  lock->lock();
  book_.give_up(flight, why);
  lost_.add(std::move(flight));
  listener_.chunk_ended(lock, transfer);
}

}  // namespace glake::transfer
