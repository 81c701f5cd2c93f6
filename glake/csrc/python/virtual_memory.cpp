// Bindings of the section "Virtual ranges" of include/glake/glake.h.
#include "python/binding.h"

namespace glake::python {
namespace {

py::int_ reserve(const py::int_& bytes, const py::int_& device) {
  void* range = released(glake_virtual_reserve, to_bytes(bytes), to_device(device));
  if (range == nullptr) raise_last();
  return from_pointer(range);
}

py::tuple info(const py::int_& range, const py::int_& offset, const py::int_& bytes) {
  glake_virtual found{};
  check(released(glake_virtual_info, to_block(range), to_bytes(offset), to_bytes(bytes), &found,
                 sizeof found));
  return py::make_tuple(found.bytes, found.backed, found.shared, found.mapped);
}

}  // namespace

void bind_virtual(py::module_& module) {
  module.def("virtual_reserve", &reserve, py::arg("bytes"), py::arg("device") = 0,
             "First address of a virtual range, without memory.");
  module.def(
      "virtual_back",
      [](const py::int_& range, const py::int_& offset, const py::int_& bytes,
         const py::int_& stream) {
        check(released(glake_virtual_back, to_block(range), to_bytes(offset), to_bytes(bytes),
                       to_stream(stream)));
      },
      py::arg("range"), py::arg("offset"), py::arg("bytes"), py::arg("stream") = 0,
      "Backs the pages that have a byte in a part of a virtual range.");
  module.def(
      "virtual_unback",
      [](const py::int_& range, const py::int_& offset, const py::int_& bytes,
         const py::int_& stream) {
        check(released(glake_virtual_unback, to_block(range), to_bytes(offset), to_bytes(bytes),
                       to_stream(stream)));
      },
      py::arg("range"), py::arg("offset"), py::arg("bytes"), py::arg("stream") = 0,
      "Gives back the memory of the pages that lie in a part of a virtual range as a whole.");
  module.def(
      "virtual_alias",
      [](const py::int_& range, const py::int_& offset, const py::int_& from,
         const py::int_& from_offset, const py::int_& bytes, const py::int_& stream) {
        check(released(glake_virtual_alias, to_block(range), to_bytes(offset), to_block(from),
                       to_bytes(from_offset), to_bytes(bytes), to_stream(stream)));
      },
      py::arg("range"), py::arg("offset"), py::arg("source"), py::arg("source_offset"),
      py::arg("bytes"), py::arg("stream") = 0, "Backs pages by the memory of other pages.");
  module.def(
      "virtual_free",
      [](const py::int_& range) { check(released(glake_virtual_free, to_block(range))); },
      py::arg("range"), "Ends a virtual range, once the device's work is done.");
  module.def(
      "capturing",
      [](const py::int_& device) {
        const int found = released(glake_capturing, to_device(device));
        if (found < 0) raise_last();
        return found != 0;
      },
      py::arg("device") = 0, "Whether a stream of the device is being captured.");
  module.def("virtual_info", &info, py::arg("range"), py::arg("offset"), py::arg("bytes"),
             "(bytes, backed, shared, mapped) of pages of a virtual range, all in bytes.");
}

}  // namespace glake::python
