// A lock that its thread holds for some ten instructions. Other threads take it only to reclaim
// memory.
#pragma once

#include <atomic>

namespace glake {

class SpinLock {
 public:
  void lock() {
    while (taken_.exchange(true, std::memory_order_acquire)) {
      while (taken_.load(std::memory_order_relaxed)) relax();
    }
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  static void relax();
  std::atomic<bool> taken_{false};
};

}  // namespace glake
