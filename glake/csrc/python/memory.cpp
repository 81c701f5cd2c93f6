// Bindings of the section "Memory that others must see whole" of include/glake/glake.h.
#include <string>

#include "python/binding.h"

namespace glake::python {
namespace {

py::int_ allocate_contiguous(const py::int_& bytes, const py::int_& device, const py::int_& stream,
                             int kind) {
  void* block = released(glake_malloc_contiguous, to_bytes(bytes), to_device(device),
                         to_stream(stream), kind);
  if (block == nullptr) raise_last();
  return from_pointer(block);
}

// `share` is glake_ipc_share() or glake_shard_share().
template <size_t (*share)(void*, char*, size_t)>
std::string shared_text(const py::int_& ptr) {
  std::string text(640, '\0');
  size_t length = released(share, to_block(ptr), &text[0], text.size());
  if (length == 0) raise_last();
  text.resize(length);
  return text;
}

// `open` is glake_ipc_open() or glake_shard_open().
template <void* (*open)(const char*, int, size_t*)>
py::tuple open_shared(const std::string& handle, const py::int_& device) {
  // A NUL in the text would end it early for C. C gets "" instead, and refuses that.
  size_t bytes = 0;
  std::string text = handle.find('\0') == std::string::npos ? handle : "";
  void* block = released(open, text.c_str(), to_device(device), &bytes);
  if (block == nullptr) raise_last();
  return py::make_tuple(from_pointer(block), bytes);
}

py::int_ allocate_host(const py::int_& bytes) {
  void* block = released(glake_host_malloc, to_bytes(bytes));
  if (block == nullptr) raise_last();
  return from_pointer(block);
}

py::int_ create_shard(const py::int_& bytes, const py::int_& device) {
  void* shard = released(glake_shard_create, to_bytes(bytes), to_device(device));
  if (shard == nullptr) raise_last();
  return from_pointer(shard);
}

py::bytes device_uuid(const py::int_& device) {
  unsigned char uuid[16];
  check(released(glake_device_uuid, to_device(device), &uuid[0]));
  return {reinterpret_cast<const char*>(uuid), sizeof uuid};
}

void bind_shards(py::module_& module) {
  module.def("shard_create", &create_shard, py::arg("bytes"), py::arg("device") = 0,
             "Address of a new shard, which may be written until it is sealed.");
  module.def(
      "shard_seal", [](const py::int_& ptr) { check(released(glake_shard_seal, to_block(ptr))); },
      py::arg("ptr"), "Makes a shard read-only for good, after the device's work.");
  module.def("shard_share", &shared_text<glake_shard_share>, py::arg("ptr"),
             "The text by which other processes open a sealed shard.");
  module.def("shard_open", &open_shared<glake_shard_open>, py::arg("handle"), py::arg("device") = 0,
             "(address, bytes) of another process's shard, mapped here read-only.");
  module.def(
      "shard_close", [](const py::int_& ptr) { check(released(glake_shard_close, to_block(ptr))); },
      py::arg("ptr"), "Closes a shard here, once it was closed as often as opened.");
  module.def("device_uuid", &device_uuid, py::arg("device") = 0,
             "The 16 bytes that tell the GPU from all others.");
}

void bind_host(py::module_& module) {
  module.def("host_malloc", &allocate_host, py::arg("bytes"),
             "Address of `bytes` bytes of pinned host memory.");
  module.def(
      "host_free", [](const py::int_& ptr) { check(released(glake_host_free, to_block(ptr))); },
      py::arg("ptr"),
      "Gives a pinned block back; it is reused once the work recorded on it is complete.");
  module.def(
      "host_record_stream",
      [](const py::int_& ptr, const py::int_& device, const py::int_& stream) {
        check(released(glake_host_record_stream, to_block(ptr), to_device(device),
                       to_stream(stream)));
      },
      py::arg("ptr"), py::arg("device"), py::arg("stream"),
      "Says that work on the stream uses the pinned block.");
  module.def(
      "host_empty_cache", [] { check(released(glake_host_empty_cache)); },
      "Gives back every pinned block that nobody holds or uses.");
  module.def(
      "host_stats",
      [] { return read_json([](char* to, size_t room) { return glake_host_stats(to, room); }); },
      "Pinned bytes allocated and reserved, and counts, by name.");
}

}  // namespace

void bind_sharing(py::module_& module) {
  module.def("malloc_contiguous", &allocate_contiguous, py::arg("bytes"), py::arg("device") = 0,
             py::arg("stream") = 0, py::arg("kind") = static_cast<int>(GLAKE_CONTIGUOUS_VMM),
             "Address of a block of one driver allocation: kind 1 VMM, 2 legacy.");
  module.def(
      "set_kind",
      [](int kind) {
        int before = glake_set_kind(kind);
        if (before < 0) raise_last();
        return before;
      },
      py::arg("kind"),
      "Sets the kind of the calling thread's later blocks; returns the former kind.");
  module.def(
      "pin", [](const py::int_& ptr) { check(released(glake_pin, to_block(ptr))); }, py::arg("ptr"),
      "Keeps the memory under a live block where it is until unpin().");
  module.def(
      "unpin", [](const py::int_& ptr) { check(released(glake_unpin, to_block(ptr))); },
      py::arg("ptr"), "Ends one pin of a block, which may have been freed.");
  module.def("ipc_share", &shared_text<glake_ipc_share>, py::arg("ptr"),
             "The text by which other processes open a block.");
  module.def("ipc_open", &open_shared<glake_ipc_open>, py::arg("handle"), py::arg("device") = 0,
             "(address, bytes) of another process's block, mapped here.");
  module.def(
      "ipc_close", [](const py::int_& ptr) { check(released(glake_ipc_close, to_block(ptr))); },
      py::arg("ptr"), "Closes a block, and unmaps it once it was closed as often as opened.");
  bind_shards(module);
  bind_host(module);
}

}  // namespace glake::python
