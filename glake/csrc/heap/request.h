// A request to a heap, and what was found for it.
#pragma once

#include <mutex>

#include "memory/arena.h"
#include "memory/hot_lock.h"
#include "memory/view.h"

namespace glake {

using HotGuard = std::unique_lock<HotLock>;

struct Request {
  Bytes size;
  Bytes requested;
  StreamId stream;
  bool granules = false;  // `size` in whole granules from anywhere, each a span of its own
  bool small() const { return size <= kSmallLimit; }
};

// The spans that a request now has, and the address through which it reaches them.
struct Found {
  Span* pieces = nullptr;
  View* view = nullptr;
  Address ptr = 0;
  explicit operator bool() const { return pieces != nullptr; }
};

// Whether a stream may wait for the work of other streams. kSure: only for work for which a wait
// will succeed (StreamClock::can_wait).
enum class Wait { kNo, kAllowed, kSure };

}  // namespace glake
