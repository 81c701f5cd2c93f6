#include "transfer/call/tracked_copies.h"

#include <algorithm>

#include "base/json_text.h"
#include "base/transfer_tuning.h"
#include "transfer/call/copy_ids.h"

namespace glake::transfer {
namespace {

// A number that is never given twice in the process, not even by another engine.
std::atomic<uint64_t> next_number{1};

}  // namespace

EventId TrackedCopies::Spare::take(int device) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::vector<EventId>& events = events_[static_cast<size_t>(device)];
  if (events.empty()) return 0;
  const EventId event = events.back();
  events.pop_back();
  return event;
}

void TrackedCopies::Spare::give(int device, EventId event) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<EventId>& events = events_[static_cast<size_t>(device)];
    if (!closed_ && events.size() < TransferTuning::kSpareEvents) {
      events.push_back(event);
      return;
    }
  }
  driver_.destroy_event(event);
}

void TrackedCopies::Spare::close() {
  std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
  for (std::vector<EventId>& events : events_) {
    for (const EventId event : events) driver_.destroy_event(event);
    events.clear();
  }
}

TrackedCopies::Track::~Track() {
  if (well) {
    spare->give(device, event);
  } else {
    driver.destroy_event(event);
  }
}

TrackedCopies::TrackPtr TrackedCopies::make(const Request& request, Rate rate) {
  const int device = request.stream_device;
  EventId event = spare_->take(device);
  if (event == 0) {
    const Status s = driver_.create_event(device, &event);
    if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "an event for a copy: " + driver_.describe(s));
  }
  auto track = std::make_shared<Track>(driver_, spare_, event, device);
  track->bytes = request.parts.total();
  track->kind = times_.kind(request);
  track->begun_ns = driver_.now_ns();
  track->expected = times_.expected(track->kind, track->bytes, rate, track->begun_ns);
  return track;
}

uint64_t TrackedCopies::put(TrackPtr track, StreamHandle stream, const char* why_plain) {
  Status s = driver_.record(track->device, track->event, stream);
  // The copy is enqueued already. If its event cannot be recorded, this waits for the copy.
  if (!s.ok()) {
    s = driver_.synchronize_stream(track->device, stream);
    if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "tracking a copy: " + driver_.describe(s));
    track->done = true;
  }
  track->why_plain = why_plain;
  const uint64_t id = tracked_id(next_number.fetch_add(1));
  std::lock_guard<std::mutex> guard(mutex_);
  tracks_.emplace(id, std::move(track));
  return id;
}

TrackedCopies::TrackPtr TrackedCopies::find(uint64_t id) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = tracks_.find(id);
  if (found != tracks_.end()) return found->second;
  throw Error(GLAKE_INVALID_ARGUMENT,
              "no copy has the id " + std::to_string(id) + "; it may have been released");
}

int TrackedCopies::wait(Track* track, uint64_t timeout_ns, std::string* text) {
  const uint64_t begin = driver_.now_ns();
  while (!track->done) {
    const uint64_t passed = driver_.now_ns() - begin;
    if (passed >= timeout_ns) {
      *text = "the copy is not done after " + std::to_string(timeout_ns) + " ns";
      return GLAKE_BUSY_TIMEOUT;
    }
    if (stopped_) {
      *text = "the transfer engine was closed; the copy goes on in its stream";
      return GLAKE_TRANSFER_CLOSED;
    }
    const uint64_t slice = std::min(TransferTuning::kWaitSlice, timeout_ns - passed);
    const Status s = driver_.wait_event(track->event, slice, track->expected);
    if (s.not_ready()) continue;
    if (!s.ok()) {
      *text = "waiting for a plain copy, whose destination may or may not be written: " +
              driver_.describe(s);
      return GLAKE_DRIVER_ERROR;
    }
    times_.note(track->kind, track->bytes, driver_.now_ns() - track->begun_ns);
    track->well = true;
    track->done = true;
  }
  return GLAKE_OK;
}

bool TrackedCopies::done(Track* track) {
  if (track->done) return true;
  const Status s = driver_.query(track->event);
  if (s.not_ready()) return false;
  if (s.ok()) track->well = true;
  track->done = true;
  return true;
}

void TrackedCopies::release(uint64_t id) {
  TrackPtr last;  // its event is destroyed outside the lock
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = tracks_.find(id);
  if (found == tracks_.end()) return;
  last = std::move(found->second);
  tracks_.erase(found);
}

void TrackedCopies::close(uint64_t most_ns) {
  for (;;) {
    TrackPtr track;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (tracks_.empty()) return;
      track = tracks_.begin()->second;
    }
    if (!track->done && driver_.wait_event(track->event, most_ns).not_ready()) {
      throw Error(GLAKE_BUSY_TIMEOUT,
                  "a stream still has work before a plain copy it was given; synchronise it, then "
                  "close the transfer engine again");
    }
    std::lock_guard<std::mutex> guard(mutex_);
    tracks_.erase(std::find_if(tracks_.begin(), tracks_.end(),
                               [&](const auto& one) { return one.second == track; }));
  }
}

}  // namespace glake::transfer
