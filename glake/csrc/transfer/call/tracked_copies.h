// Events behind plain copies. A caller learns by them when the copy alone is done, and not all of
// its stream's work.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "transfer/buffers/devices.h"
#include "transfer/call/copy.h"
#include "transfer/call/copy_times.h"

namespace glake::transfer {

class TrackedCopies {
 public:
  // Events that no copy uses. Copies may outlive the engine's books, so each copy holds this
  // object.
  class Spare {
   public:
    Spare(Driver& driver, int devices) : driver_(driver), events_(static_cast<size_t>(devices)) {}
    Spare(const Spare&) = delete;
    Spare& operator=(const Spare&) = delete;
    EventId take(int device);  // 0: there is none
    void give(int device, EventId event);
    void close();  // destroys them; an event that comes later is destroyed at once

   private:
    Driver& driver_;
    std::mutex mutex_;
    bool closed_ = false;
    std::vector<std::vector<EventId>> events_;  // of each device
  };

  // A device's event, and the copy that it is recorded behind.
  struct Track {
    Track(Driver& of, std::shared_ptr<Spare> pool, EventId made, int on)
        : driver(of), spare(std::move(pool)), event(made), device(on) {}
    Track(const Track&) = delete;
    Track& operator=(const Track&) = delete;
    ~Track();

    Driver& driver;
    const std::shared_ptr<Spare> spare;
    const EventId event;
    const int device;
    Bytes bytes = 0;
    CopyTimes::Kind kind;
    uint64_t begun_ns = 0;
    ExpectedEnd expected;
    const char* why_plain = nullptr;  // a string literal; null: there is no reason to tell
    std::atomic<bool> done{false};
    std::atomic<bool> well{false};  // done without an error, so its event may be used again
  };
  using TrackPtr = std::shared_ptr<Track>;

  TrackedCopies(Driver& driver, int devices)
      : driver_(driver), times_(devices), spare_(std::make_shared<Spare>(driver, devices)) {}
  ~TrackedCopies() { spare_->close(); }

  // Makes the event for a copy, before the copy itself is made. If the driver refuses the event,
  // the copy is not made, because nobody could wait for it. `rate` is the planned rate; 0: there is
  // no plan. Throws Error.
  TrackPtr make(const Request& request, Rate rate);
  // Records the event in `stream`, whose last copy must be this one. Returns the copy's id. Throws
  // Error.
  uint64_t put(TrackPtr track, StreamHandle stream, const char* why_plain);
  TrackPtr find(uint64_t id);  // throws Error
  int wait(Track* track, uint64_t timeout_ns, std::string* text);
  bool done(Track* track);
  void release(uint64_t id);
  // Ends all waits at once. The copies go on.
  void stop_waits() { stopped_ = true; }
  void allow_waits() { stopped_ = false; }
  // Waits for the copies that have not been released, at most `most_ns` for each. They may still
  // use their callers' memory. Throws Error if a copy takes longer; it may be called again.
  void close(uint64_t most_ns);
  // Gives the events back to the driver. No caller may ask about a copy any more.
  void free_events() { spare_->close(); }

 private:
  Driver& driver_;
  CopyTimes times_;
  const std::shared_ptr<Spare> spare_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::unordered_map<uint64_t, TrackPtr> tracks_;
};

}  // namespace glake::transfer
