// Knows whether the calling thread is inside glake, where it may hold glake's locks or libc's. If a
// signal handler calls glake meanwhile, the call must fail, because it would wait for its own
// thread. Threads keep this state only with the option `debug`.
#pragma once

#include <atomic>

namespace glake {

// While it exists, the thread counts as inside or as outside glake. The thread counts as outside
// while glake calls a caller's function, with no lock held. A function that enters glake makes this
// its first local, so that it outlives all others.
class Alone {
 public:
  explicit Alone(bool inside) : before_(inside_) { set(inside); }
  ~Alone() { set(before_); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  static bool now() { return inside_; }
  // Sets the state without an object, because another function ends it, as at a fork. The fences
  // tell the compiler to keep every lock and unlock on its side of the change.
  static void set(bool inside) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    inside_ = inside;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

 private:
  // It is in the static TLS block, so a read of it allocates nothing. A signal handler may read it,
  // too.
  static __attribute__((tls_model("initial-exec"))) __thread bool inside_;
  bool before_;
};

}  // namespace glake
