// The Python module glake._C has the calls of include/glake/glake.h one by one, and raises statuses
// as glake.errors. Sizes and pointers are Python ints. So an error can name a negative or huge
// number, which a conversion would just refuse.
#include <cstdio>
#include <string>

#include "python/binding.h"

namespace glake::replay {
void bind_replay(py::module_& module);  // replay.cpp
}
namespace glake::python {
void bind_watch(py::module_& module);     // watch.cpp
void bind_sharing(py::module_& module);   // memory.cpp
void bind_dlpack(py::module_& module);    // dlpack.cpp
void bind_regions(py::module_& module);   // regions.cpp
void bind_virtual(py::module_& module);   // virtual_memory.cpp
void bind_transfer(py::module_& module);  // transfer.cpp
void bind_plans(py::module_& module);     // plan.cpp
}  // namespace glake::python

namespace {

using namespace glake::python;

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

// A trace that the program does not end, ends with the process. By then Python has freed its last
// blocks, and nobody can catch an error any more.
void end_trace() {
  if (glake_trace(nullptr) != GLAKE_FILE_FAILED) return;
  char text[4096] = "";
  glake_last_error(text, sizeof text);
  std::fprintf(stderr, "glake: %s\n", text);
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
  module.def(
      "trim",
      [](const py::int_& device, const py::int_& bytes) {
        size_t given = 0;
        check(released(glake_trim, to_device(device), to_bytes(bytes), &given));
        return given;
      },
      py::arg("device"), py::arg("bytes"),
      "Returns about so many idle bytes to the driver. Returns how many the driver took.");
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
      "owed_bytes",
      [](const py::int_& device) {
        int number = to_device(device);
        int64_t bytes = released(glake_owed_bytes, number);
        if (bytes < 0) raise_last();
        return bytes;
      },
      py::arg("device") = 0, "Bytes that the driver refused to take back; opens no device.");
  module.def(
      "reset_peak_stats",
      [](const py::int_& device) { check(released(glake_reset_peak_stats, to_device(device))); },
      py::arg("device") = 0, "Clears the peaks.");
  module.def(
      "mark_step",
      [](const py::int_& device) { check(released(glake_mark_step, to_device(device))); },
      py::arg("device") = 0, "Starts the next step in the trace and the statistics.");
  module.def("trace", &trace, py::arg("path"),
             "Writes a trace to `path` from now on; None ends it.");
  module.def(
      "check", [](const py::int_& device) { check(released(glake_check, to_device(device))); },
      py::arg("device") = 0,
      "Checks every invariant, and the guards of `debug`. Slow. Raises Internal or Corrupted.");
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
  module.def("device_count", &device_count, "How many devices the driver has. Opens the driver.");
  module.def(
      "enable_peer_access",
      [](const py::int_& device, const py::int_& peer) {
        check(released(glake_enable_peer_access, to_device(device), to_device(peer)));
      },
      py::arg("device"), py::arg("peer"), "Lets `peer` reach all of `device`'s memory.");
  module.def(
      "stream_may_end",
      [](const py::int_& device, const py::int_& stream) {
        check(released(glake_stream_may_end, to_device(device), to_stream(stream)));
      },
      py::arg("device"), py::arg("stream"),
      "Says that the stream may be destroyed at any time. Only calls that name it ask about it.");
  module.def(
      "stream_wait",
      [](const py::int_& device, const py::int_& stream, const py::int_& for_stream) {
        check(released(glake_stream_wait, to_device(device), to_stream(stream),
                       to_stream(for_stream)));
      },
      py::arg("device"), py::arg("stream"), py::arg("for_stream"),
      "Makes the stream's later work wait for the work that `for_stream` has now.");
  module.def(
      "set_headroom",
      [](const py::int_& device, const py::int_& bytes) {
        size_t free = 0;
        check(released(glake_set_headroom, to_device_or_all(device), to_bytes(bytes), &free));
        return free;
      },
      py::arg("device"), py::arg("bytes"),
      "Leaves this much memory of a device (-1: of each) to others; returns the bytes then free.");
  module.def(
      "headroom",
      [](const py::int_& device) {
        size_t bytes = 0;
        check(released(glake_headroom, to_device_or_all(device), &bytes));
        return bytes;
      },
      py::arg("device"), "The headroom of a device, or (-1) of those used later.");
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
  module.doc() = "Bindings of glake's C interface (include/glake/glake.h).";
  module.attr("cuda_header_version") = GLAKE_CUDA_HEADER_VERSION;
  module.attr("compiler") = __VERSION__;
  Py_AtExit(end_trace);
  bind_memory(module);
  bind_books(module);
  bind_driver(module);
  glake::python::bind_watch(module);
  glake::python::bind_sharing(module);
  glake::python::bind_dlpack(module);
  glake::python::bind_regions(module);
  glake::python::bind_virtual(module);
  glake::python::bind_transfer(module);
  glake::python::bind_plans(module);
  glake::replay::bind_replay(module);
}
