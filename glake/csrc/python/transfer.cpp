// Bindings of the section on transfers of include/glake/glake.h.
#include <pybind11/stl.h>

#include <algorithm>
#include <list>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "glake/glake.h"
#include "python/binding.h"

namespace glake::python {
namespace {

// A GPU, GLAKE_HOST or GLAKE_ASK.
int to_place(const py::int_& value) {
  int overflow = 0;
  long place = PyLong_AsLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0 || place < GLAKE_ASK || place > INT_MAX) {
    raise(GLAKE_INVALID_DEVICE, "device " + shown(value) +
                                    ": a GPU's number, -1 for host memory, or -2 to ask the "
                                    "driver");
  }
  return static_cast<int>(place);
}

// Keeps an object's memory in place while it exists. The constructor raises the object's own
// exception.
class HeldBuffer {
 public:
  HeldBuffer(const py::handle& object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw py::error_already_set();
  }
  ~HeldBuffer() { PyBuffer_Release(&view_); }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  const Py_buffer* operator->() const { return &view_; }
  bool dense() const { return PyBuffer_IsContiguous(&view_, 'C') != 0; }

 private:
  Py_buffer view_{};
};

using Stream = std::pair<py::int_, py::int_>;  // device, handle

// A request from Python. It holds the parts' memory.
class HeldRequest {
 public:
  // `parts` is a dense buffer of unsigned 64-bit numbers, three for each part: dst, src, bytes.
  // `streams` has none, one or two streams.
  HeldRequest(const py::buffer& parts, const py::int_& dst_device, const py::int_& src_device,
              const std::vector<Stream>& streams, unsigned flags)
      : numbers_(parts, PyBUF_STRIDES) {
    constexpr Py_ssize_t kPart = sizeof(glake_copy_part);
    if (numbers_->itemsize != sizeof(uint64_t) || numbers_->len % kPart != 0 || !numbers_.dense()) {
      raise(GLAKE_INVALID_ARGUMENT,
            "parts: expected a dense uint64 array of three numbers a part: dst, src, bytes");
    }
    if (streams.size() > 2) {
      raise(GLAKE_INVALID_ARGUMENT, "a copy is ordered by two streams at most");
    }
    static_assert(sizeof(glake_copy_part) == 3 * sizeof(uint64_t), "rows are parts");
    request_.size = sizeof request_;
    request_.parts = static_cast<const glake_copy_part*>(numbers_->buf);
    request_.count = static_cast<size_t>(numbers_->len / kPart);
    request_.dst_device = to_place(dst_device);
    request_.src_device = to_place(src_device);
    request_.flags = flags;
    if (!streams.empty()) {
      request_.ordered = 1;
      request_.stream_device = to_device(streams[0].first);
      request_.stream = to_stream(streams[0].second);
    }
    if (streams.size() == 2) {
      request_.also_ordered = 1;
      request_.also_device = to_device(streams[1].first);
      request_.also_stream = to_stream(streams[1].second);
    }
  }
  const glake_copy_request& operator*() const { return request_; }

 private:
  const HeldBuffer numbers_;
  glake_copy_request request_{};
};

uint64_t start(const py::buffer& parts, const py::int_& dst_device, const py::int_& src_device,
               const std::vector<Stream>& streams, unsigned flags) {
  const HeldRequest request(parts, dst_device, src_device, streams, flags);
  const uint64_t id = released(glake_copy_start, &*request);
  if (id == 0) raise_last();
  return id;
}

// Each request has what start() takes. Their ids are appended to `ids`, also if one cannot start.
// The ids of those that have not started are 0.
using Given = std::tuple<py::buffer, py::int_, py::int_, std::vector<Stream>, unsigned>;
void start_all(const std::vector<Given>& given, py::list ids) {
  std::list<HeldRequest> held;
  std::vector<glake_copy_request> requests;
  for (const auto& [parts, dst_device, src_device, streams, flags] : given) {
    requests.push_back(*held.emplace_back(parts, dst_device, src_device, streams, flags));
  }
  std::vector<uint64_t> started(requests.size());
  const int status =
      released(glake_copy_start_all, requests.data(), requests.size(), started.data());
  for (const uint64_t id : started) ids.append(py::int_(id));
  check(status);
}

int wait(uint64_t id, uint64_t timeout_ns) { return released(glake_copy_wait, id, timeout_ns); }

bool done(uint64_t id) {
  const int answer = released(glake_copy_done, id);
  if (answer < 0) raise_last();
  return answer != 0;
}

bool settled(uint64_t id) {
  const int answer = released(glake_copy_settled, id);
  if (answer < 0) raise_last();
  return answer != 0;
}

py::tuple progress(uint64_t id) {
  uint64_t arrived = 0, total = 0;
  check(released(glake_copy_progress, id, &arrived, &total));
  return py::make_tuple(arrived, total);
}

void bind_handles(py::module_& module) {
  module.def("copy_start", &start, py::arg("parts"), py::arg("dst_device"), py::arg("src_device"),
             py::arg("streams"), py::arg("flags") = 0u,
             "Starts a copy of parts (dst, src, bytes) in the order of the streams; its id.");
  module.def("copy_start_all", &start_all, py::arg("requests"), py::arg("ids"),
             "Starts several copies, which are planned together. Each request is what copy_start() "
             "takes. Appends their ids, also if it raises; 0: the copy has not started.");
  module.def(
      "copy_wait",
      [](uint64_t id, uint64_t timeout_ns) {
        const int status = wait(id, timeout_ns);
        if (status == GLAKE_BUSY_TIMEOUT) return false;
        check(status);
        return true;
      },
      py::arg("id"), py::arg("timeout_ns") = UINT64_MAX,
      "Waits for a copy; false if it is not done in time.");
  module.def("copy_done", &done, py::arg("id"), "Whether the copy is done.");
  module.def("copy_settled", &settled, py::arg("id"),
             "Whether the copy is over, and no driver copy that was given up may still go on.");
  module.def(
      "copy_stream_wait",
      [](uint64_t id, const py::int_& device, const py::int_& stream) {
        check(released(glake_copy_stream_wait, id, to_device(device), to_stream(stream)));
      },
      py::arg("id"), py::arg("device"), py::arg("stream"),
      "Makes later work on the stream wait for the copy.");
  module.def(
      "copy_cancel", [](uint64_t id) { check(released(glake_copy_cancel, id)); }, py::arg("id"),
      "Cancels the copy: no more chunks start, and chunks under way still arrive.");
  module.def(
      "copy_release", [](uint64_t id) { check(released(glake_copy_release, id)); }, py::arg("id"),
      "Forgets the id; the copy goes on.");
  module.def("copy_progress", &progress, py::arg("id"), "(bytes that have arrived, bytes in all).");
  module.def(
      "copy_result",
      [](uint64_t id) {
        return read_json([=](char* to, size_t room) { return glake_copy_result(id, to, room); });
      },
      py::arg("id"), "Bytes, time, and what went over which path.");
}

using TimedPlace = std::pair<py::int_, int>;  // a GPU or GLAKE_HOST, with the socket

std::vector<std::vector<uint64_t>> time_copies(
    const std::vector<std::pair<TimedPlace, TimedPlace>>& copies, const py::int_& bytes,
    int repeats) {
  std::vector<glake_timed_copy> timed;
  for (const auto& [dst, src] : copies) {
    timed.push_back({to_place(dst.first), dst.second, to_place(src.first), src.second});
  }
  const auto rounds = static_cast<size_t>(std::clamp(repeats, 0, 1 << 10));
  std::vector<uint64_t> ns(copies.size() * rounds);
  check(
      released(glake_time_copies, timed.data(), timed.size(), to_bytes(bytes), repeats, ns.data()));
  std::vector<std::vector<uint64_t>> times;
  for (size_t i = 0; i < copies.size(); ++i) {
    const auto first = ns.begin() + static_cast<ptrdiff_t>(i * rounds);
    times.emplace_back(first, first + static_cast<ptrdiff_t>(rounds));
  }
  return times;
}

void bind_engine(py::module_& module) {
  module.def(
      "transfer_open",
      [](const std::string& topology, const std::string& name) {
        check(released(glake_transfer_open, topology.c_str(), name.c_str()));
      },
      py::arg("topology"), py::arg("name") = "", "Opens the process's transfer engine.");
  module.def(
      "transfer_close", [] { check(released(glake_transfer_close)); },
      "Ends the engine: transfers are cancelled, its threads stop.");
  module.def(
      "transfer_stats", [] { return read_json(glake_transfer_stats); },
      "Copies and bytes so far, paths and their states.");
  module.def(
      "transfer_explain",
      [](const py::int_& dst, const py::int_& src, int node, const py::int_& bytes) {
        const int to = to_place(dst), from = to_place(src);
        const size_t size = to_bytes(bytes);
        return read_json([=](char* text, size_t room) {
          return glake_transfer_explain(to, from, node, size, text, room);
        });
      },
      py::arg("dst_device"), py::arg("src_device"), py::arg("node"), py::arg("bytes"),
      "What the open engine would do now: paths with rates, refusals.");
  module.def("time_copies", &time_copies, py::arg("copies"), py::arg("bytes"), py::arg("repeats"),
             "Makes the copies (dst, src) at once, each `repeats` times. A place is (GPU or -1, "
             "socket). Returns for each copy the nanoseconds from its start to each end. Without "
             "copies it gives the buffers back.");
}

void bind_lending(py::module_& module) {
  module.def(
      "transfer_lend",
      [](uint32_t relays, const std::vector<double>& factors) {
        check(released(glake_transfer_lend, relays, factors.data(), factors.size()));
      },
      py::arg("relays"), py::arg("factors"),
      "Sets the GPUs that may relay, as bits, and this process's part of each limit.");
  module.def(
      "transfer_demands", [] { return read_json(glake_transfer_demands); },
      "GPUs used, and the ends of transfers under way.");
  module.def(
      "transfer_demands_event",
      [] {
        const int event = released(glake_transfer_demands_event);
        if (event < 0) raise_last();
        return event;
      },
      "A descriptor that becomes readable when the demands change.");
}

void bind_remote(py::module_& module) {
  module.def(
      "transfer_open_relays",
      [](const std::string& path, const std::vector<int>& gpus, const std::vector<int>& there) {
        if (gpus.size() != there.size())
          raise(GLAKE_INVALID_ARGUMENT, "gpus and there must have the same length");
        check(released(glake_transfer_open_relays, path.c_str(), gpus.data(), there.data(),
                       gpus.size()));
      },
      py::arg("path"), py::arg("gpus"), py::arg("there"),
      "Has the service at `path` relay on GPUs that this process does not see.");
  module.def(
      "shared_alloc",
      [](const py::int_& bytes) {
        void* const at = released(glake_shared_alloc, to_bytes(bytes));
        if (at == nullptr) raise_last();
        return reinterpret_cast<uintptr_t>(at);
      },
      py::arg("bytes"), "Pinned host memory that relays of the service reach; its address.");
  module.def(
      "shared_free",
      [](const py::int_& address) { check(released(glake_shared_free, to_block(address))); },
      py::arg("address"), "Frees memory of shared_alloc().");
  module.def(
      "relay_open",
      [](const std::string& driver, const std::string& path) {
        check(released(glake_relay_open, driver.c_str(), path.c_str()));
      },
      py::arg("driver"), py::arg("path"),
      "Makes this process the relay service, for processes that see one GPU.");
  module.def(
      "relay_wait", [] { check(released(glake_relay_wait)); },
      "Waits until the relay service is closed. DriverError: a GPU is lost, and the service ends.");
  module.def("relay_close", [] { check(released(glake_relay_close)); }, "Ends the relay service.");
}

bool pinned(const py::int_& address, uint64_t timeout_ns) {
  const int status = released(glake_register_host_wait, to_block(address), timeout_ns);
  if (status == GLAKE_BUSY_TIMEOUT) return false;
  check(status);
  return true;
}

// Returns (address, shape, strides, bytes of an item, whether it has no gaps, whether it is
// read-only, bytes) of an array. To read the array interface, which is a dictionary of texts, would
// take several times as long.
py::object array_memory(const py::object& array) {
  try {
    const HeldBuffer held(array, PyBUF_STRIDES);
    const auto count = static_cast<size_t>(held->ndim);
    py::tuple shape(count), strides(count);
    for (size_t i = 0; i < count; ++i) {
      shape[i] = held->shape[i];
      strides[i] = held->strides[i];
    }
    return py::make_tuple(reinterpret_cast<uintptr_t>(held->buf), shape, strides, held->itemsize,
                          held.dense(), held->readonly != 0, held->len);
  } catch (const py::error_already_set&) {
    return py::none();
  }
}

void bind_host_memory(py::module_& module) {
  module.def("array_memory", &array_memory, py::arg("array"),
             "(address, shape, strides, bytes of an item, whether it has no gaps, whether it is "
             "read-only, bytes); None if the object has no buffer.");
  module.def(
      "register_host",
      [](const py::int_& address, const py::int_& bytes, bool background) {
        check(released(glake_register_host, to_block(address), to_bytes(bytes),
                       static_cast<int>(background)));
      },
      py::arg("address"), py::arg("bytes"), py::arg("background") = false, "Pins host memory.");
  module.def("register_host_wait", &pinned, py::arg("address"), py::arg("timeout_ns") = UINT64_MAX,
             "Waits until all is pinned; false if it takes longer.");
  module.def(
      "register_host_progress",
      [](const py::int_& address) {
        uint64_t done = 0, total = 0;
        check(released(glake_register_host_progress, to_block(address), &done, &total));
        return py::make_tuple(done, total);
      },
      py::arg("address"), "(bytes pinned, bytes in all).");
  module.def(
      "unregister_host",
      [](const py::int_& address) { check(released(glake_unregister_host, to_block(address))); },
      py::arg("address"), "Unpins memory of register_host().");
  module.def(
      "place_of",
      [](const py::int_& address) {
        int device = 0, known = 0;
        check(
            released(glake_place_of, static_cast<const void*>(to_block(address)), &device, &known));
        return py::make_tuple(device, known != 0);
      },
      py::arg("address"), "(its GPU or -1, whether the driver knows it).");
}

}  // namespace

void bind_transfer(py::module_& module) {
  bind_handles(module);
  bind_engine(module);
  bind_lending(module);
  bind_remote(module);
  bind_host_memory(module);
}

}  // namespace glake::python
