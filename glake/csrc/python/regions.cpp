// Bindings of the section "Regions" of include/glake/glake.h.
#include <string>

#include "python/binding.h"

namespace glake::python {
namespace {

py::tuple named(glake_pool pool) { return py::make_tuple(pool.first, pool.second); }

glake_pool to_pool(const std::pair<uint64_t, uint64_t>& pool) { return {pool.first, pool.second}; }

}  // namespace

void bind_regions(py::module_& module) {
  using Pool = std::pair<uint64_t, uint64_t>;
  module.def(
      "region_pool",
      [](const std::string& name) {
        glake_pool pool{};
        // A NUL would end the text early for C. So it is replaced by a character that C refuses.
        const std::string text = name.find('\0') == std::string::npos ? name : "\1";
        check(released(glake_region_pool, text.c_str(), &pool));
        return named(pool);
      },
      py::arg("name"), "The pool of the region of that name.");
  module.def(
      "region_budget",
      [](const Pool& pool, const py::int_& bytes) {
        check(released(glake_region_budget, to_pool(pool), static_cast<uint64_t>(to_bytes(bytes))));
      },
      py::arg("pool"), py::arg("bytes"),
      "Sets the most bytes that the region may hold on each device; 0: no bound.");
  module.def(
      "set_pool",
      [](const Pool& pool) {
        glake_pool before{};
        check(released(glake_set_pool, to_pool(pool), &before));
        return named(before);
      },
      py::arg("pool"),
      "Sets the pool of the calling thread's later blocks; returns the former pool.");
  module.def(
      "region_pause",
      [](const py::int_& device, const Pool& pool, int to, const std::string& folder) {
        check(released(glake_region_pause, to_device(device), to_pool(pool), to, folder.c_str()));
      },
      py::arg("device"), py::arg("pool"), py::arg("to"), py::arg("folder") = "",
      "Gives a region's granules back to the driver; `to`: 1 host, 2 disk, 3 discard.");
  module.def(
      "region_resume",
      [](const py::int_& device, const Pool& pool, bool verify) {
        check(released(glake_region_resume, to_device(device), to_pool(pool), verify ? 1 : 0));
      },
      py::arg("device"), py::arg("pool"), py::arg("verify") = true,
      "Brings a region's granules and bytes back, at the same addresses.");
  module.def(
      "regions",
      [] { return read_json([](char* to, size_t room) { return glake_regions(to, room); }); },
      "Each region of each device in use.");
}

}  // namespace glake::python
