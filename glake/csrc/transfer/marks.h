// Events behind plain copies, for callers who want to know when just the copy is done rather than
// all that its stream holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "driver/driver.h"

namespace glake::transfer {

class Marks {
 public:
  // An event of a device, and what it stands for.
  class Mark {
   public:
    Mark(Driver& driver, EventId event, int device)
        : driver_(driver), event_(event), device_(device) {}
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    ~Mark() { driver_.destroy_event(event_); }

   private:
    friend class Marks;
    Driver& driver_;
    EventId event_;
    int device_;
    Bytes bytes_ = 0;
    const char* why_ = nullptr;
    std::atomic<bool> done_{false};
  };
  using MarkPtr = std::shared_ptr<Mark>;

  explicit Marks(Driver& driver) : driver_(driver) {}

  static bool is(uint64_t id) { return id >> kShift == 1; }
  // An event for a copy about to be made, so that no event is no copy. Throws Error.
  MarkPtr make(int device);
  // The id of the copy of `bytes` that `stream` holds last. `why`, a literal or null: why it is
  // plain.
  uint64_t put(MarkPtr mark, StreamHandle stream, Bytes bytes, const char* why);
  // GLAKE_OK, GLAKE_BUSY_TIMEOUT, or the status of what went wrong, with its text.
  int wait(uint64_t id, uint64_t timeout_ns, std::string* text);
  bool done(uint64_t id) { return done(*find(id)); }
  bool done(Mark& mark);
  void hold_stream(uint64_t id, int device, StreamHandle stream);
  MarkPtr find(uint64_t id);  // throws Error
  Bytes bytes(uint64_t id) { return find(id)->bytes_; }
  const char* why(uint64_t id) { return find(id)->why_; }
  void release(uint64_t id);
  // Those who wait return; the copies go on.
  void stop_waits() { stopped_ = true; }
  // Waits for the copies whose marks have not been released, for at most `most_ns` each: their
  // callers keep memory for them. Throws Error if one is later, and may be tried again.
  void close(uint64_t most_ns);

 private:
  static constexpr int kShift = 60;

  Driver& driver_;
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::unordered_map<uint64_t, MarkPtr> marks_;
};

}  // namespace glake::transfer
