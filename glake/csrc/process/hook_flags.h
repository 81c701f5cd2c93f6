// What else an allocation or free of this process must do, with a bit for each. Almost always no
// bit is set, and the hot path checks only that.
#pragma once

#include <atomic>
#include <cstdint>

namespace glake {

enum AllocHook : uint32_t {
  kTraced = 1,
  kWatched = 2,  // watch/watch.h
  kDebug = 4,    // debug/debug_device.h
  kKinds = 8,    // some blocks come from the contiguous pool, or from a thread's own pool
  kUnread = 16,  // the options, which may ask for the others, have not been read yet
  kCopied = 32,  // copies outside stream order are under way, and their memory must not be freed
};

class HookFlags {
 public:
  bool any() const { return bits_.load(std::memory_order_acquire) != 0; }
  bool has(AllocHook d) const { return (bits_.load(std::memory_order_acquire) & d) != 0; }
  void set(AllocHook d, bool on) {
    if (on) {
      bits_.fetch_or(d);
    } else {
      bits_.fetch_and(~static_cast<uint32_t>(d));
    }
  }
  void clear() { bits_.store(0); }

 private:
  std::atomic<uint32_t> bits_{kUnread};
};

}  // namespace glake
