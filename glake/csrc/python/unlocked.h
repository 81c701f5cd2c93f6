// Without the GIL while this lives.
//
// A daemon thread that wants the GIL back once Python has begun to end is ended there (before
// Python 3.14, by unwinding its stack). pybind11's gil_scoped_release lets nothing through its
// destructor, so that the whole process aborts; this one does.
#pragma once

#include <Python.h>

namespace glake {

class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() noexcept(false) { PyEval_RestoreThread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace glake
