#include "core/streams.h"

namespace glake {
namespace {

// An epoch is closed when allocation moves to another stream, or once it holds so many frees: small
// enough that waits are for old work, large enough that an event (about 1 us) stays rare.
constexpr uint64_t kEpochFrees = 64;
constexpr size_t kMostMarks = 64;  // outstanding on one stream

}  // namespace

StreamId StreamClock::id_of(StreamHandle handle) {
  if (last_ < streams_.size() && streams_[last_].handle == handle) return last_;
  auto found = ids_.find(handle);
  if (found != ids_.end()) return found->second;
  auto id = static_cast<StreamId>(streams_.size());
  if (id == kMaxStreams) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "more than 65536 streams on device " + std::to_string(device_) + "; reuse streams");
  }
  streams_.emplace_back();
  streams_.back().handle = handle;
  for (Stream& s : streams_) s.waited.resize(streams_.size(), 0);
  ids_.emplace(handle, id);
  return id;
}

Ticket StreamClock::stamp(StreamId id) {
  Stream& s = streams_[id];
  ++s.frees;
  return Ticket(id, s.open);
}

bool StreamClock::ordered(StreamId waiter, Ticket t) const {
  return t.stream == waiter || t.epoch <= streams_[t.stream].completed ||
         t.epoch <= streams_[waiter].waited[t.stream];
}

bool StreamClock::ordered(StreamId waiter, const Tickets& tickets) const {
  for (Ticket t : tickets) {
    if (!ordered(waiter, t)) return false;
  }
  return true;
}

bool StreamClock::complete(const Tickets& tickets) const {
  for (Ticket t : tickets) {
    if (t.epoch > streams_[t.stream].completed) return false;
  }
  return true;
}

// Where marks fall follows from the order of calls alone, so a repeated step repeats its placement.
void StreamClock::turn(StreamId id) {
  if (streams_.size() > 1) {
    if (streams_[id].frees >= kEpochFrees) mark(id);
    for (StreamId other = 0; id != last_ && other < streams_.size(); ++other) {
      if (other != id && streams_[other].frees != 0) mark(other);
    }
  }
  last_ = id;
}

// A mark covers every earlier epoch, so the older half can be halved when work never completes.
void StreamClock::thin(std::deque<Mark>& marks) {
  std::deque<Mark> kept;
  for (size_t i = 0; i < marks.size(); ++i) {
    if (i < marks.size() / 2 && i % 2 == 0) {
      spare_events_.push_back(marks[i].event);
    } else {
      kept.push_back(marks[i]);
    }
  }
  marks.swap(kept);
}

bool StreamClock::mark(StreamId id) {
  Stream& s = streams_[id];
  bool capturing = false;
  if (!driver_.is_capturing(device_, s.handle, &capturing).ok() || capturing) return false;
  EventId event = 0;
  if (!spare_events_.empty()) {
    event = spare_events_.back();
    spare_events_.pop_back();
  } else if (!driver_.create_event(device_, &event).ok()) {
    return false;
  }
  if (!driver_.record(device_, event, s.handle).ok()) {
    spare_events_.push_back(event);
    return false;
  }
  if (s.marks.size() >= kMostMarks) thin(s.marks);
  s.marks.push_back({s.open, event});
  ++s.open;
  s.frees = 0;
  ++marks_;
  return true;
}

void StreamClock::poll() {
  for (Stream& s : streams_) {
    while (!s.marks.empty()) {
      if (!driver_.query(s.marks.front().event).ok()) break;
      s.completed = s.marks.front().epoch;
      spare_events_.push_back(s.marks.front().event);
      s.marks.pop_front();
    }
  }
}

const StreamClock::Mark* StreamClock::covering(StreamId id, uint64_t epoch) const {
  for (const Mark& m : streams_[id].marks) {
    if (m.epoch >= epoch) return &m;
  }
  return nullptr;
}

bool StreamClock::wait(StreamId waiter, const Tickets& tickets) {
  for (Ticket t : tickets) {
    if (ordered(waiter, t)) continue;
    const Mark* m = covering(t.stream, t.epoch);
    if (m == nullptr) {
      if (!mark(t.stream)) return false;
      m = covering(t.stream, t.epoch);
    }
    bool capturing = false;
    StreamHandle handle = streams_[waiter].handle;
    if (!driver_.is_capturing(device_, handle, &capturing).ok() || capturing) return false;
    if (!driver_.wait_stream(device_, handle, m->event).ok()) return false;
    streams_[waiter].waited[t.stream] = m->epoch;
    ++waits_;
  }
  return true;
}

bool StreamClock::wait_host(const Tickets& tickets) {
  for (Ticket t : tickets) {
    if (t.epoch <= streams_[t.stream].completed) continue;
    const Mark* m = covering(t.stream, t.epoch);
    if (m == nullptr) {
      if (!mark(t.stream)) return false;
      m = covering(t.stream, t.epoch);
    }
    if (!driver_.wait_host(m->event).ok()) return false;
  }
  poll();
  return complete(tickets);
}

bool StreamClock::any_capturing() {
  for (const Stream& s : streams_) {
    bool capturing = false;
    // A destroyed stream is refused, and captures nothing.
    if (driver_.is_capturing(device_, s.handle, &capturing).ok() && capturing) return true;
  }
  return false;
}

void StreamClock::begin_sync() {
  for (Stream& s : streams_) {
    s.syncing = s.open++;
    s.frees = 0;
  }
}

void StreamClock::end_sync() {
  for (Stream& s : streams_) {
    s.completed = std::max(s.completed, s.syncing);
    while (!s.marks.empty() && s.marks.front().epoch <= s.completed) {
      spare_events_.push_back(s.marks.front().event);
      s.marks.pop_front();
    }
  }
}

Status StreamClock::close() {
  for (Stream& s : streams_) {
    for (const Mark& m : s.marks) spare_events_.push_back(m.event);
    s.marks.clear();
  }
  while (!spare_events_.empty()) {
    Status s = driver_.destroy_event(spare_events_.back());
    if (!s.ok()) return s;
    spare_events_.pop_back();
  }
  return {};
}

}  // namespace glake
