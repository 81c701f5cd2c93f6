#include "memory/stream_clock.h"

#include <algorithm>

#include "base/tuning.h"

namespace glake {
namespace {

constexpr StreamHandle kNoStream = ~StreamHandle{0};

}  // namespace

void StreamClock::Stream::begin(StreamHandle stream, void* context) {
  handle = stream;
  elsewhere = context;
  polled = number = 0;
  gone = capturing = false;
  waited.clear();
}

uint64_t StreamClock::Stream::waited_for(StreamId source) const {
  for (const Ticket& each : waited) {
    if (each.stream == source) return each.epoch;
  }
  return 0;
}

void StreamClock::Stream::note_wait(StreamId source, uint64_t epoch,
                                    const std::vector<Stream>& streams) {
  for (Ticket& each : waited) {
    if (each.stream != source) continue;
    each.epoch = epoch;
    return;
  }
  // Waits for what is complete say nothing any more.
  if (waited.size() == waited.capacity()) {
    const auto over = [&](Ticket each) { return each.epoch <= streams[each.stream].completed; };
    waited.erase(std::remove_if(waited.begin(), waited.end(), over), waited.end());
  }
  waited.emplace_back(source, epoch);
}

StreamId StreamClock::id_of(StreamHandle handle) {
  if (last_ < streams_.size() && streams_[last_].handle == handle) return last_;
  auto found = ids_.find(handle);
  if (found != ids_.end()) return found->second;
  auto id = static_cast<StreamId>(streams_.size());
  if (ended_.can_take()) {
    id = ended_.take();
  } else if (id == kMaxStreams) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "more than 65536 streams on " + device_text(device_) +
                    ", and no synchronisation of the device can be made that would show which of "
                    "them have ended; reuse streams, or end the capture");
  } else {
    streams_.emplace_back();
    ended_.made(id);
  }
  streams_[id].begin(handle, driver_.other_context(device_, handle));
  ids_.emplace(handle, id);
  if (id != 0) same_stream(id);
  return id;
}

bool StreamClock::foreign(const Stream& s) const {
  if (is_thread_stream(s.handle)) return s.handle != this_thread_stream();
  return !driver_.streams().askable(s.handle);
}

// If the driver refuses to say, the last answer holds: a wait would break a capture that goes on.
bool StreamClock::capturing(StreamId id, bool* answered) {
  Stream& s = streams_[id];
  if (!s.gone && !foreign(s)) {
    bool yes = false;
    const Status status = driver_.is_capturing(device_, s.handle, &yes);
    s.told(status);
    if (status.ok()) s.capturing = yes;
    if (answered != nullptr) *answered = status.ok();
  }
  return !s.gone && s.capturing;
}

bool StreamClock::usable(StreamId id) {
  bool answered = false;
  return !capturing(id, &answered) && answered;
}

// False if the driver refuses, or if the handle names another stream than when it was first seen.
// Drivers give a destroyed stream's handle to a new one. The driver's number tells the two apart.
bool StreamClock::same_stream(StreamId id) {
  Stream& s = streams_[id];
  if (s.handle == 0 || is_thread_stream(s.handle)) return true;
  uint64_t number = 0;
  Status status = driver_.stream_number(device_, s.handle, &number);
  s.told(status);
  if (!status.ok()) return false;
  if (s.number != 0 && s.number != number) {
    id_of(end(id, End::kUnmarked));  // the new stream gets its own id
    return false;
  }
  s.number = number;
  return true;
}

StreamHandle StreamClock::end(StreamId id, End how) {
  Stream& s = streams_[id];
  const StreamHandle handle = s.handle;
  if (how != End::kPerhaps) ended_.add({id, syncs_.begun, how == End::kMarked ? s.open - 1 : 0});
  ids_.erase(handle);
  if (!is_thread_stream(handle)) ++replaced_;  // a thread that ends names it no more
  s.handle = kNoStream;
  s.gone = true;
  return handle;
}

void StreamClock::forget(StreamHandle handle) {
  auto found = ids_.find(handle);
  if (found == ids_.end()) return;
  // A thread that ends records nothing more.
  const bool marked = !is_thread_stream(handle) && close_epoch(found->second);
  found = ids_.find(handle);  // the handle has another id if it named a new stream already
  if (found != ids_.end()) end(found->second, marked ? End::kMarked : End::kUnmarked);
}

void StreamClock::reuse(const std::vector<bool>& named) {
  poll();
  ended_.release([&](const EndedStreams::Ended& e) {
    const Stream& s = streams_[e.id];
    const bool complete = e.syncs < syncs_.ended || (e.epoch != 0 && e.epoch <= s.completed);
    return complete && s.frees == 0 && !named[e.id];
  });
}

Ticket StreamClock::stamp(StreamId id) {
  Stream& s = streams_[id];
  ++s.frees;
  return Ticket(id, s.open);
}

bool StreamClock::ordered(StreamId waiter, Ticket t) const {
  return t.stream == waiter || t.epoch <= streams_[t.stream].completed ||
         t.epoch <= streams_[waiter].waited_for(t.stream);
}

bool StreamClock::ordered(StreamId waiter, const Tickets& tickets) const {
  for (Ticket t : tickets) {
    if (!ordered(waiter, t)) return false;
  }
  return true;
}

bool StreamClock::complete(const Tickets& tickets) const {
  if (syncs_.ended < unticketed_) return false;
  for (Ticket t : tickets) {
    if (t.epoch > streams_[t.stream].completed) return false;
  }
  return true;
}

StreamId StreamClock::turn(StreamId id) {
  StreamHandle handle = streams_[id].handle;
  ++turns_;
  polls_ = 0;
  // This is done even if there is only one stream. A stream that is gone counts as not captured.
  bool yes = false;
  if (streams_[id].gone && driver_.is_capturing(device_, handle, &yes).ok()) {
    // There is new work on it, so the handle names another stream, or a refusal was no proof.
    id = id_of(same_stream(id) ? end(id, End::kPerhaps) : handle);
  } else if (driver_.streams().ending(handle)) {
    id = renew(id);
  }
  last_ = id;
  return id;
}

// A caller names a stream that may end. The driver can be asked about the stream only now, so
// everything that is needed later is asked and marked here.
StreamId StreamClock::renew(StreamId id) {
  const StreamHandle handle = streams_[id].handle;
  if (!same_stream(id)) id = id_of(handle);
  driver_.streams().seen(handle, streams_[id].number);
  capturing(id);
  if (streams_.size() > 1 && streams_[id].frees != 0) mark(id);
  return id;
}

void StreamClock::mark_all() {
  for (StreamId id = 0; id < streams_.size(); ++id) {
    if (streams_[id].frees != 0) mark(id);
  }
}

// A question about the default stream may end another stream's capture. So it is asked only if
// there are few streams, and none of them is captured.
bool StreamClock::may_query(StreamId id) {
  if (streams_[id].handle != 0) return true;
  if (streams_.size() > Tuning::kPollsATurn) return false;
  for (StreamId other = 0; other < streams_.size(); ++other) {
    const Stream& s = streams_[other];
    bool not_captured = s.gone || (foreign(s) ? !s.capturing : usable(other));
    if (!not_captured) return false;
  }
  return true;
}

void StreamClock::ask_idle(StreamId waiter) {
  for (StreamId id = 0; id < streams_.size(); ++id) {
    if (id != waiter && streams_[id].frees != 0) close_epoch(id);
  }
}

// The driver says at once that a stream is idle. If an event is recorded on an idle stream, the
// driver says only some time later that the event has happened.
bool StreamClock::close_epoch(StreamId id) {
  // An idle stream of another GPU may stand for that GPU's default one (torch/cuda/allocator.cpp).
  if (streams_[id].elsewhere != nullptr) return false;
  if (!usable(id) || !same_stream(id)) return false;
  bool idle = false;
  if (may_query(id) && driver_.stream_idle(device_, streams_[id].handle, &idle).ok() && idle) {
    streams_[id].frees = 0;
    completed_up_to(id, streams_[id].open++);
    return true;
  }
  return record(id);
}

bool StreamClock::mark(StreamId id) { return usable(id) && same_stream(id) && record(id); }

bool StreamClock::record(StreamId id) {
  Stream& s = streams_[id];
  if (s.elsewhere != nullptr) return false;  // an event and its stream must be of one context
  EventId event = 0;
  if (!spare_events_.empty()) {
    event = spare_events_.back();
    spare_events_.pop_back();
  } else if (!driver_.create_event(device_, &event).ok()) {
    return false;
  }
  Status recorded = driver_.record(device_, event, s.handle);
  if (!recorded.ok()) {
    s.told(recorded);
    spare_events_.push_back(event);
    return false;
  }
  s.marks.add({s.open, event}, spare_events_);
  ++s.open;
  s.frees = 0;
  ++marks_;
  return true;
}

void StreamClock::poll() {
  for (Stream& s : streams_) s.marks.poll(driver_, &s.completed, spare_events_);
}

void StreamClock::ask(Ticket t) {
  Stream& s = streams_[t.stream];
  if (s.polled == turns_ || polls_ == Tuning::kPollsATurn) return;
  if (s.marks.empty() && (s.gone || foreign(s))) return;
  ++polls_;
  s.polled = turns_;
  if (s.marks.covering(t.epoch) != nullptr) {
    s.marks.poll(driver_, &s.completed, spare_events_);
  } else {
    close_epoch(t.stream);
  }
}

bool StreamClock::wait(StreamId waiter, const Tickets& tickets) {
  for (Ticket t : tickets) {
    if (ordered(waiter, t)) continue;
    const StreamMarks::Mark* m = streams_[t.stream].marks.covering(t.epoch);
    if (m == nullptr) {
      if (!mark(t.stream)) return false;
      m = streams_[t.stream].marks.covering(t.epoch);
    }
    if (!usable(waiter)) return false;
    Status waited = driver_.wait_stream(device_, streams_[waiter].handle, m->event);
    streams_[waiter].told(waited);
    if (!waited.ok()) return false;
    streams_[waiter].note_wait(t.stream, m->epoch, streams_);
    ++waits_;
  }
  return true;
}

bool StreamClock::can_wait(StreamId waiter, Ticket t) {
  const Stream& s = streams_[t.stream];
  const bool marked =
      s.marks.covering(t.epoch) != nullptr || (s.elsewhere == nullptr && usable(t.stream));
  return marked && usable(waiter);
}

bool StreamClock::wait_host(const Tickets& tickets) {
  for (Ticket t : tickets) {
    if (t.epoch <= streams_[t.stream].completed) continue;
    const StreamMarks::Mark* m = streams_[t.stream].marks.covering(t.epoch);
    if (m == nullptr) {
      if (!mark(t.stream)) return false;
      m = streams_[t.stream].marks.covering(t.epoch);
    }
    if (!driver_.wait_host(m->event).ok()) return false;
  }
  poll();
  return complete(tickets);
}

std::vector<EventId> StreamClock::last_marks() {
  mark_all();
  poll();
  std::vector<EventId> last;
  for (const Stream& s : streams_) {
    if (!s.marks.empty()) last.push_back(s.marks.last());
  }
  return last;
}

bool StreamClock::any_capturing() {
  for (StreamId id = 0; id < streams_.size(); ++id) {
    if (capturing(id)) return true;
  }
  return false;
}

std::vector<void*> StreamClock::begin_sync() {
  ++syncs_.begun;
  std::vector<void*> contexts;
  for (Stream& s : streams_) {
    const bool work = s.frees != 0 || s.completed + 1 < s.open;
    const bool noted = std::find(contexts.begin(), contexts.end(), s.elsewhere) != contexts.end();
    if (s.elsewhere != nullptr && work && !noted) contexts.push_back(s.elsewhere);
    s.syncing = s.open++;
    s.frees = 0;
  }
  return contexts;
}

void StreamClock::end_sync() {
  syncs_.ended = syncs_.begun;
  ended_.synchronised();
  for (StreamId id = 0; id < streams_.size(); ++id) completed_up_to(id, streams_[id].syncing);
}

void StreamClock::completed_up_to(StreamId id, uint64_t epoch) {
  Stream& s = streams_[id];
  s.completed = std::max(s.completed, epoch);
  s.marks.drop(s.completed, spare_events_);
}

Status StreamClock::close() {
  for (Stream& s : streams_) s.marks.drop(UINT64_MAX, spare_events_);
  while (!spare_events_.empty()) {
    Status s = driver_.destroy_event(spare_events_.back());
    if (!s.ok()) return s;
    spare_events_.pop_back();
  }
  return {};
}

}  // namespace glake
