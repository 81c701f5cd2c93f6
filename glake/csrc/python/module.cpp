// The Python module glake._C: csrc/capi.h call by call, its statuses raised as glake.errors.
// Sizes and pointers are Python ints, so that a negative or huge one is named in the error rather
// than refused by a conversion.
#include <pybind11/pybind11.h>

#include <climits>
#include <string>
#include <vector>

#include "capi.h"
#include "python/unlocked.h"

namespace py = pybind11;

namespace glake::replay {
void bind_replay(py::module_& module);  // replay.cpp
}

namespace {

[[noreturn]] void raise(int status, const std::string& text) {
  py::object error = py::module_::import("glake.errors").attr("from_status")(status, text);
  PyErr_SetObject(py::type::handle_of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

// The calling thread's last error: the text may be of any length.
[[noreturn]] void raise_last() {
  std::vector<char> text(4096);
  int status = glake_last_error(text.data(), text.size());
  raise(status == GLAKE_OK ? GLAKE_INTERNAL : status, text.data());
}

void check(int status) {
  if (status != GLAKE_OK) raise_last();
}

std::string shown(const py::int_& value) { return py::str(value); }

size_t to_bytes(const py::int_& value) {
  int overflow = 0;
  long long bytes = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0 || bytes < 0) {
    raise(GLAKE_INVALID_ARGUMENT, "a size of " + shown(value) +
                                      " bytes: sizes are from 1 byte to less than 2^63; pass the "
                                      "number of bytes the block must hold");
  }
  return static_cast<size_t>(bytes);
}

int to_device(const py::int_& value) {
  int overflow = 0;
  long device = PyLong_AsLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0 || device < 0 || device > INT_MAX) {
    raise(GLAKE_INVALID_DEVICE,
          "device " + shown(value) + ": devices are numbered from 0 to device_count() - 1");
  }
  return static_cast<int>(device);
}

void* to_pointer(const py::int_& value, int status, const char* what) {
  void* pointer = PyLong_AsVoidPtr(value.ptr());
  bool failed = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  if (failed || py::cast<bool>(value.attr("__lt__")(0))) {
    raise(status, std::string(what) + " " + shown(value) + " is no address: pass the int that " +
                      "malloc() or the stream's owner gave");
  }
  return pointer;
}

void* to_block(const py::int_& value) {
  return to_pointer(value, GLAKE_INVALID_POINTER, "pointer");
}
void* to_stream(const py::int_& value) {
  return to_pointer(value, GLAKE_INVALID_ARGUMENT, "stream");
}

py::int_ from_pointer(void* pointer) {
  return py::reinterpret_steal<py::int_>(PyLong_FromVoidPtr(pointer));
}

// Calls an interface function without the GIL: it may wait for a device or another thread.
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

py::int_ allocate(const py::int_& bytes, const py::int_& device, const py::int_& stream) {
  size_t size = to_bytes(bytes);
  void* block = released(glake_malloc, size, to_device(device), to_stream(stream));
  if (block == nullptr) {
    if (size == 0 && glake_last_error(nullptr, 0) == GLAKE_OK) return py::int_(0);
    raise_last();
  }
  return from_pointer(block);
}

py::tuple block_info(const py::int_& pointer) {
  size_t bytes = 0;
  int device = 0;
  void* stream = nullptr;
  check(released(glake_block_info, to_block(pointer), &bytes, &device, &stream));
  return py::make_tuple(bytes, device, from_pointer(stream));
}

int device_count() {
  int count = released(glake_device_count);
  if (count < 0) raise_last();
  return count;
}

void trace(const py::object& path) {
  if (path.is_none()) return check(released(glake_trace, static_cast<const char*>(nullptr)));
  std::string name = py::str(path);
  check(released(glake_trace, name.c_str()));
}

void bind_memory(py::module_& module) {
  module.def("malloc", &allocate, py::arg("bytes"), py::arg("device") = 0, py::arg("stream") = 0,
             "Address of a new block of `bytes` bytes, 512-byte aligned.");
  module.def(
      "free", [](const py::int_& ptr) { check(released(glake_free, to_block(ptr))); },
      py::arg("ptr"), "Gives a block back in the order of its stream; 0 is accepted.");
  module.def(
      "record_stream",
      [](const py::int_& ptr, const py::int_& stream) {
        check(released(glake_record_stream, to_block(ptr), to_stream(stream)));
      },
      py::arg("ptr"), py::arg("stream"), "Says that work on `stream` uses the block.");
  module.def("block_info", &block_info, py::arg("ptr"), "(bytes, device, stream) of a block.");
  module.def(
      "empty_cache",
      [](const py::int_& device) { check(released(glake_empty_cache, to_device(device))); },
      py::arg("device") = 0, "Returns every granule that no block holds to the driver.");
}

void bind_books(py::module_& module) {
  module.def(
      "stats",
      [](const py::int_& device) {
        int number = to_device(device);
        return read_json([=](char* to, size_t room) { return glake_stats(number, to, room); });
      },
      py::arg("device") = 0, "Statistics of a device: counts and bytes by name.");
  module.def(
      "reset_peak_stats",
      [](const py::int_& device) { check(released(glake_reset_peak_stats, to_device(device))); },
      py::arg("device") = 0, "Clears the peaks.");
  module.def(
      "mark_step",
      [](const py::int_& device) { check(released(glake_mark_step, to_device(device))); },
      py::arg("device") = 0, "Starts the next step in the trace and the statistics.");
  module.def("trace", &trace, py::arg("path"), "Records to `path` from now on; None ends it.");
  module.def(
      "check", [](const py::int_& device) { check(released(glake_check, to_device(device))); },
      py::arg("device") = 0, "Checks every invariant; Internal names a broken one. Slow.");
}

void bind_driver(py::module_& module) {
  module.def(
      "configure",
      [](const std::string& key, const std::string& value) {
        check(released(glake_configure, key.c_str(), value.c_str()));
      },
      py::arg("key"), py::arg("value"), "Sets an option by its name without GLAKE_.");
  module.def(
      "options", [] { return read_json(glake_options); },
      "The core's options: name, default, present value and meaning of each.");
  module.def("device_count", &device_count, "Devices of the driver, which it opens.");
  module.def(
      "enable_peer_access",
      [](const py::int_& device, const py::int_& peer) {
        check(released(glake_enable_peer_access, to_device(device), to_device(peer)));
      },
      py::arg("device"), py::arg("peer"), "Lets `peer` reach all of `device`'s memory.");
  module.def(
      "shutdown", [] { check(released(glake_shutdown)); },
      "Gives everything back and forgets the driver; refused while blocks are live.");
  module.def(
      "driver_path", [] { return std::string(glake_driver_path()); },
      "Path of the driver library in use; empty before first use.");
  module.def("version", [] { return std::string(glake_version()); }, "Version of libglake.so.");
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "Bindings of glake's C interface (csrc/capi.h).";
  module.attr("cuda_header_version") = GLAKE_CUDA_HEADER_VERSION;
  module.attr("compiler") = __VERSION__;
  bind_memory(module);
  bind_books(module);
  bind_driver(module);
  glake::replay::bind_replay(module);
}
