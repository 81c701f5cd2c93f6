// Where a thread's allocations come from: kinds and pools that threads set for themselves, and the
// option `contiguous`.
#pragma once

#include <atomic>
#include <mutex>

#include "base/options.h"
#include "heap/region_book.h"
#include "process/hook_flags.h"

namespace glake {

class ThreadKinds {
 public:
  // `mutex` is the process's: of its options, and of this.
  ThreadKinds(std::mutex& mutex, HookFlags& hooks) : mutex_(mutex), hooks_(hooks) {}

  // What an allocation of the calling thread is: its own kind if it has set one, else by the option
  // `contiguous` (`by_size`). set_kind() returns the kind before.
  int kind_of(Bytes bytes, bool* by_size) const;
  int set_kind(int kind);
  // Where the calling thread's later blocks come from: a private pool, or {0, 0}. Returns the pool
  // before.
  static PoolId pool_of_thread();
  PoolId set_pool(PoolId pool);
  // Under the mutex.
  void use_options(const Options& options);

 private:
  struct Own;
  static Own& mine();
  void count(int step);

  std::mutex& mutex_;
  HookFlags& hooks_;
  int threads_ = 0;  // with a kind or a pool of their own
  // Read on the way of every allocation, set under the mutex.
  std::atomic<Bytes> contiguous_from_{0};
  std::atomic<int> contiguous_kind_{GLAKE_CONTIGUOUS_VMM};
};

}  // namespace glake
