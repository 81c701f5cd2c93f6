// Whether the calling thread is inside glake, where it may hold its locks or libc's: known with the
// option `debug`. What a signal handler calls then must fail, for it would wait for its own thread.
#pragma once

#include <atomic>

namespace glake {

// For its lifetime the thread counts as inside glake, or as outside: around a caller's function,
// with no lock held. What says inside is its function's first local, to outlive every destructor.
class Alone {
 public:
  explicit Alone(bool inside) : before_(inside_) { set(inside); }
  ~Alone() { set(before_); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  static bool now() { return inside_; }
  // For what ends in another function: a fork's.
  // No lock may be taken before, nor given up after: the fences say so to the compiler.
  static void set(bool inside) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    inside_ = inside;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

 private:
  // In the static block: reading it allocates nothing, in a handler either.
  static __attribute__((tls_model("initial-exec"))) __thread bool inside_;
  bool before_;
};

}  // namespace glake
