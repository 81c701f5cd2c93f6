// Begins and ends work if the clock moves by itself, also if nobody waits for the work.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "flows.h"
#include "pending.h"
#include "shared_links.h"
#include "timeline.h"
#include "turns.h"

namespace simcuda {

class Timekeeper {
 public:
  Timekeeper(std::mutex* mutex, const SharedLinks* shared, const PendingWork* pending,
             const Turns* turns, const Flows* flows, Timeline* timeline);

  void wake() { work_.notify_one(); }
  // Ends its thread. The mutex must not be held.
  void stop();

 private:
  void keep_time();
  std::chrono::nanoseconds rest() const;

  std::mutex* const mutex_;
  const SharedLinks* const shared_;
  const PendingWork* const pending_;
  const Turns* const turns_;
  const Flows* const flows_;
  Timeline* const timeline_;
  bool stopping_ = false;
  std::condition_variable work_;
  std::thread thread_;
};

}  // namespace simcuda
