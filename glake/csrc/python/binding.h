// What all bindings share: functions that check Python's ints before they go to the C interface,
// and that raise its statuses as glake.errors.
#pragma once

#include <pybind11/pybind11.h>

#include <climits>
#include <string>
#include <vector>

#include "glake/glake.h"
#include "python/unlocked.h"

namespace py = pybind11;

namespace glake::python {

[[noreturn]] inline void raise(int status, const std::string& text) {
  py::object error = py::module_::import("glake.errors").attr("from_status")(status, text);
  PyErr_SetObject(py::type::handle_of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

// Raises the calling thread's last error. Only the first 64 KiB of its text are kept.
[[noreturn]] inline void raise_last() {
  std::vector<char> text(1 << 16);
  int status = glake_last_error(text.data(), text.size());
  raise(status == GLAKE_OK ? GLAKE_INTERNAL : status, text.data());
}

inline void check(int status) {
  if (status != GLAKE_OK) raise_last();
}

inline std::string shown(const py::int_& value) { return py::str(value); }

inline size_t to_bytes(const py::int_& value) {
  int overflow = 0;
  long long bytes = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0 || bytes < 0) {
    raise(GLAKE_INVALID_ARGUMENT, "a size of " + shown(value) +
                                      " bytes: sizes are from 1 byte to less than 2^63; pass the "
                                      "number of bytes the block must hold");
  }
  return static_cast<size_t>(bytes);
}

inline int to_device(const py::int_& value) {
  int overflow = 0;
  long device = PyLong_AsLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0 || device < 0 || device > INT_MAX) {
    raise(GLAKE_INVALID_DEVICE,
          "device " + shown(value) + ": devices are numbered from 0; `glake info` lists them");
  }
  return static_cast<int>(device);
}

inline int to_device_or_all(const py::int_& value) {
  return value.equal(py::int_(-1)) ? -1 : to_device(value);
}

inline void* to_pointer(const py::int_& value, int status, const char* what) {
  void* pointer = PyLong_AsVoidPtr(value.ptr());
  bool failed = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  if (failed || py::cast<bool>(value.attr("__lt__")(0))) {
    raise(status, std::string(what) + " " + shown(value) + " is no address: pass the int that " +
                      "its owner gave");
  }
  return pointer;
}

inline void* to_block(const py::int_& value) {
  return to_pointer(value, GLAKE_INVALID_POINTER, "pointer");
}
inline void* to_stream(const py::int_& value) {
  return to_pointer(value, GLAKE_INVALID_ARGUMENT, "stream");
}

inline py::int_ from_pointer(void* pointer) {
  return py::reinterpret_steal<py::int_>(PyLong_FromVoidPtr(pointer));
}

// Calls an interface function without the GIL, because it may wait for a device or another thread.
template <typename Function, typename... Arguments>
auto released(Function function, Arguments... arguments) {
  glake::Unlocked unlocked;
  return function(arguments...);
}

// Reads a JSON text of unknown length, which may grow between the two calls.
template <typename Read>
py::object read_json(Read read) {
  std::string text(8192, '\0');
  for (;;) {
    size_t length = released([&] { return read(&text[0], text.size()); });
    if (length == 0) raise_last();
    if (length < text.size()) {
      text.resize(length);
      return py::module_::import("json").attr("loads")(text);
    }
    text.assign(length + 1024, '\0');
  }
}

}  // namespace glake::python
