#include "process/thread_kinds.h"

#include "process/process.h"

namespace glake {

// A thread's kind and pool. They end with the thread.
struct ThreadKinds::Own {
  int kind = GLAKE_STITCHED;
  PoolId pool{};
  bool any() const { return kind != GLAKE_STITCHED || pool != PoolId{}; }
  ~Own() {
    if (!any()) return;
    ThreadKinds& kinds = Process::instance().kinds();
    std::lock_guard<std::mutex> guard(kinds.mutex_);
    kinds.count(-1);
  }
};

ThreadKinds::Own& ThreadKinds::mine() {
  thread_local Own own;
  return own;
}

// Called under the mutex.
void ThreadKinds::count(int step) {
  threads_ += step;
  hooks_.set(kKinds, threads_ != 0 || contiguous_from_.load() != 0);
}

void ThreadKinds::use_options(const Options& options) {
  contiguous_from_ = options.contiguous.from;
  contiguous_kind_ = options.contiguous.kind;
  count(0);
}

int ThreadKinds::kind_of(Bytes bytes, bool* by_size) const {
  int kind = mine().kind;
  *by_size = kind == GLAKE_STITCHED;
  if (kind != GLAKE_STITCHED) return kind;
  Bytes from = contiguous_from_.load();
  return from != 0 && bytes >= from ? contiguous_kind_.load() : GLAKE_STITCHED;
}

int ThreadKinds::set_kind(int kind) {
  Own& own = mine();
  int before = own.kind;
  const bool own_before = own.any();
  std::lock_guard<std::mutex> guard(mutex_);
  own.kind = kind;
  count((own.any() ? 1 : 0) - (own_before ? 1 : 0));
  return before;
}

PoolId ThreadKinds::pool_of_thread() { return mine().pool; }

PoolId ThreadKinds::set_pool(PoolId pool) {
  Process::instance().check_usable();
  Own& own = mine();
  const PoolId before = own.pool;
  const bool own_before = own.any();
  std::lock_guard<std::mutex> guard(mutex_);
  own.pool = pool;
  count((own.any() ? 1 : 0) - (own_before ? 1 : 0));
  return before;
}

}  // namespace glake
