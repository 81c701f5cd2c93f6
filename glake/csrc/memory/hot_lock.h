// The hot lock of a device, which guards its books. To lock or unlock it takes one atomic operation
// if nobody waits, and a futex call if somebody does. It remembers whether threads contend. A
// thread that needs the device's slow lock as well (FairMutex) takes that one first.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/tuning.h"

namespace glake {

class HotLock {
 public:
  void lock() {
    uint32_t free = kFree;
    if (word_.compare_exchange_strong(free, kTaken, std::memory_order_acquire)) {
      int recent = contention_.load(std::memory_order_relaxed);
      if (recent != 0) contention_.store(recent - 1, std::memory_order_relaxed);
      return;
    }
    lock_slow();
  }
  void unlock() {
    if (word_.exchange(kFree, std::memory_order_release) == kAwaited) {
      syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }
  }
  // True if a thread had to wait during the last few thousand acquisitions.
  bool contended() const { return contention_.load(std::memory_order_relaxed) != 0; }

 private:
  static constexpr uint32_t kFree = 0, kTaken = 1, kAwaited = 2;

  void lock_slow() {
    for (int i = 0; i < Tuning::kLockSpins; ++i) {
      uint32_t free = kFree;
      if (word_.load(std::memory_order_relaxed) == kFree &&
          word_.compare_exchange_weak(free, kTaken, std::memory_order_acquire)) {
        contention_.store(Tuning::kContended, std::memory_order_relaxed);
        return;
      }
    }
    while (word_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
      syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, kAwaited, nullptr, nullptr, 0);
    }
    contention_.store(Tuning::kContended, std::memory_order_relaxed);
  }

  std::atomic<uint32_t> word_{kFree};
  std::atomic<int> contention_{0};
};

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain word");

}  // namespace glake
