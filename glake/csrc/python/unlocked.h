// Releases the GIL while it exists.
//
// Once Python has begun to end, a daemon thread that wants the GIL back is ended at that point.
// Before Python 3.14 that unwinds its stack. The destructor of pybind11's gil_scoped_release lets
// no such unwinding through, so the whole process aborts. This destructor does let it through.
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
