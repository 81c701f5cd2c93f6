// Events of one stream, oldest first. Each was recorded behind an epoch of frees and is not known
// to have happened. Events that are no longer needed go to the caller's list of spare ones.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "driver/driver.h"

namespace glake {

class StreamMarks {
 public:
  struct Mark {
    uint64_t epoch;
    EventId event;
  };

  bool empty() const { return marks_.empty(); }
  EventId last() const { return marks_.back().event; }
  // The first event behind the epoch, or null. It stays in place until add(), poll() or drop().
  const Mark* covering(uint64_t epoch) const;

  void add(const Mark& mark, std::vector<EventId>& spare);
  // Asks the driver which events have happened. *completed becomes the epoch of the last one of
  // these.
  void poll(Driver& driver, uint64_t* completed, std::vector<EventId>& spare);
  // Drops the events of epochs up to this one.
  void drop(uint64_t epoch, std::vector<EventId>& spare);

 private:
  void thin(std::vector<EventId>& spare);

  std::deque<Mark> marks_;
};

}  // namespace glake
