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
  // `mutex` is the process's. It guards the process's options and this.
  ThreadKinds(std::mutex& mutex, HookFlags& hooks) : mutex_(mutex), hooks_(hooks) {}

  // The kind of an allocation by the calling thread. It is the thread's own kind, if the thread has
  // set one. Otherwise the option `contiguous` decides, and `by_size` is set. set_kind() returns
  // the former kind.
  int kind_of(Bytes bytes, bool* by_size) const;
  int set_kind(int kind);
  // The source of the calling thread's later blocks: a private pool, or {0, 0}. set_pool() returns
  // the former pool.
  static PoolId pool_of_thread();
  PoolId set_pool(PoolId pool);
  // Called under the mutex.
  void use_options(const Options& options);

 private:
  struct Own;
  static Own& mine();
  void count(int step);

  std::mutex& mutex_;
  HookFlags& hooks_;
  int threads_ = 0;  // threads with a kind or a pool of their own
  // Every allocation reads these. They are set under the mutex.
  std::atomic<Bytes> contiguous_from_{0};
  std::atomic<int> contiguous_kind_{GLAKE_CONTIGUOUS_VMM};
};

}  // namespace glake
