// What the files of the module glake._C share: statuses raised as glake.errors, numbers taken from
// Python.
#pragma once

#include <pybind11/pybind11.h>

#include <climits>
#include <string>
#include <vector>

#include "capi.h"

namespace glake::python {

[[noreturn]] inline void raise(int status, const std::string& text) {
  pybind11::object error =
      pybind11::module_::import("glake.errors").attr("from_status")(status, text);
  PyErr_SetObject(pybind11::type::handle_of(error).ptr(), error.ptr());
  throw pybind11::error_already_set();
}

// The calling thread's last error; a list of findings may be long.
[[noreturn]] inline void raise_last() {
  std::vector<char> text(1 << 16);
  int status = glake_last_error(text.data(), text.size());
  raise(status == GLAKE_OK ? GLAKE_INTERNAL : status, text.data());
}

inline void check(int status) {
  if (status != GLAKE_OK) raise_last();
}

inline std::string shown(const pybind11::int_& value) { return pybind11::str(value); }

inline int to_device(const pybind11::int_& value) {
  int overflow = 0;
  long device = PyLong_AsLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0 || device < 0 || device > INT_MAX) {
    raise(GLAKE_INVALID_DEVICE,
          "device " + shown(value) + ": devices are numbered from 0 to device_count() - 1");
  }
  return static_cast<int>(device);
}

// Calls an interface function without the GIL: it may wait for a device or another thread.
template <typename Function, typename... Arguments>
auto released(Function function, Arguments... arguments) {
  pybind11::gil_scoped_release release;
  return function(arguments...);
}

}  // namespace glake::python
