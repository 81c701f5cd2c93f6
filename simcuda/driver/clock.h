// The time. The clock is virtual and moves with the work. In the threaded mode it is the system's.
// If processes share their links (option pace), it is common to all of them.
#pragma once

#include "options.h"
#include "shared_links.h"

namespace simcuda {

class Clock {
 public:
  // `shared` are the links of all processes; nullptr: each process has its own.
  Clock(const Options& options, const SharedLinks* shared);

  uint64_t now_ns() const;
  // The moment up to which work has been timed.
  uint64_t moment_ns() const { return moment_ns_; }
  void move_to(uint64_t ns) { moment_ns_ = ns; }
  // Sets the moment to now, if the clock moves by itself.
  void catch_up();

  bool threaded() const { return threaded_; }
  bool paced() const { return shared_ != nullptr; }

 private:
  const SharedLinks* const shared_;
  const bool threaded_;
  const uint64_t epoch_ns_;
  uint64_t moment_ns_ = 0;
};

}  // namespace simcuda
