// An event of the pool in work_streams.h, lent to one operation.
#pragma once

#include "driver/driver.h"

namespace glake::transfer {

class WorkStreams;

class LentEvent {
 public:
  LentEvent() = default;
  LentEvent(WorkStreams* owner, int device, EventId id) : owner_(owner), device_(device), id_(id) {}
  LentEvent(LentEvent&& other) noexcept { *this = std::move(other); }
  LentEvent& operator=(LentEvent&& other) noexcept;
  ~LentEvent() { reset(); }
  EventId id() const { return id_; }
  explicit operator bool() const { return owner_ != nullptr; }
  void reset();

 private:
  WorkStreams* owner_ = nullptr;
  int device_ = -1;
  EventId id_ = 0;
};

}  // namespace glake::transfer
