// The slow lock of a device, for the paths that map memory. Threads get it in the order in which
// they came, so that a thread that maps all the time does not starve the others.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace glake {

class FairMutex {
 public:
  void lock() {
    std::unique_lock<std::mutex> guard(mutex_);
    uint64_t mine = next_++;
    turn_.wait(guard, [this, mine] { return serving_ == mine; });
  }
  void unlock() {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      ++serving_;
    }
    turn_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable turn_;
  uint64_t next_ = 0, serving_ = 0;
};

}  // namespace glake
