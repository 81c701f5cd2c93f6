// Threads for work on much host memory. One core does it at a tenth of the links' rate.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/tuning.h"

namespace glake {

class Crew {
 public:
  // There are no threads for less than two pieces of work. Then add() does the work itself.
  explicit Crew(size_t pieces) {
    const size_t cores = std::thread::hardware_concurrency();
    const size_t threads =
        pieces < 2 ? 0 : std::clamp<size_t>(cores / Tuning::kCrewCores, 1, Tuning::kCrewMost);
    for (size_t i = 0; i < std::min(threads, pieces); ++i) threads_.emplace_back([this] { run(); });
  }
  ~Crew() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
      work_.clear();
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Work begins in the order of the calls, several pieces at once. It must not throw.
  void add(std::function<void()> work) {
    if (threads_.empty()) return work();
    {
      std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
      ++left_;
    }
    wake_.notify_one();
  }

  // Waits until all added work is done.
  void finish() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return ending_ || !work_.empty(); });
      if (work_.empty()) return;
      std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      lock.lock();
      if (--left_ == 0) idle_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<std::function<void()>> work_;
  size_t left_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace glake
