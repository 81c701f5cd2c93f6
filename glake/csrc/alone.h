// Whether the calling thread is inside glake and may hold its locks, known with the option `debug`:
// what a signal handler calls then must fail, for it would wait for its own thread.
#pragma once

namespace glake {

class Alone {
 public:
  explicit Alone(bool on) : before_(inside_) { inside_ = inside_ || on; }
  ~Alone() { inside_ = before_; }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  static bool now() { return inside_; }

 private:
  // In the static block: reading it allocates nothing, in a handler either.
  static __attribute__((tls_model("initial-exec"))) __thread bool inside_;
  bool before_;
};

}  // namespace glake
