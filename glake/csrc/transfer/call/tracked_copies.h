// Events behind plain copies, for callers who want to know when just the copy is done rather than
// all that its stream holds.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "transfer/buffers/devices.h"
#include "transfer/call/copy.h"

namespace glake::transfer {

class TrackedCopies {
 public:
  // An event of a device, and the copy it stands for.
  struct Track {
    Track(Driver& of, EventId made, int on) : driver(of), event(made), device(on) {}
    Track(const Track&) = delete;
    Track& operator=(const Track&) = delete;
    ~Track() { driver.destroy_event(event); }

    Driver& driver;
    const EventId event;
    const int device;
    Bytes bytes = 0;
    const char* why_plain = nullptr;  // a literal; null: nothing is to be said
    std::atomic<bool> done{false};
  };
  using TrackPtr = std::shared_ptr<Track>;

  explicit TrackedCopies(Driver& driver) : driver_(driver) {}

  // Makes the event for a copy, before the copy itself is made. If the driver refuses the event,
  // then there is no copy that nobody can wait for. Throws Error.
  TrackPtr make(int device);
  // Records the event behind the last copy in `stream`, which is of `bytes` bytes. Returns the
  // copy's id. Throws Error.
  uint64_t put(TrackPtr track, StreamHandle stream, Bytes bytes, const char* why_plain);
  TrackPtr find(uint64_t id);  // throws Error
  int wait(Track* track, uint64_t timeout_ns, std::string* text);
  bool done(Track* track);
  void release(uint64_t id);
  // Ends all waits at once. The copies go on.
  void stop_waits() { stopped_ = true; }
  // Waits for the copies that have not been released, at most `most_ns` for each: their callers
  // keep memory for them. Throws Error if a copy takes longer; it may be called again.
  void close(uint64_t most_ns);

 private:
  Driver& driver_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::unordered_map<uint64_t, TrackPtr> tracks_;
};

}  // namespace glake::transfer
