// Watching in the Python module glake._C: Python stacks as contexts, snapshots and history as plain
// lists, tags, and findings.
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/tuning.h"
#include "glake/glake.h"
#include "python/binding.h"

namespace py = pybind11;

namespace glake::python {
namespace {

// The interpreter's frames, the innermost first. They are made into text only when somebody asks.
struct Stack {
  struct Frame {
    PyCodeObject* code;
    int line;
  };
  std::vector<Frame> frames;
  std::vector<void*> native;  // return addresses of C++ frames, if requested
};
std::atomic<bool> with_native{false};

// The stacks that glake has dropped. Any thread may drop a stack, with or without the GIL. So their
// code objects are given back when the next stack is captured.
struct Stacks {
  std::mutex mutex;
  std::vector<Stack*> dropped;
};
Stacks& stacks() {
  static auto* instance = new Stacks;
  return *instance;
}

bool finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

void give_back() {
  std::vector<Stack*> mine;
  {
    std::lock_guard<std::mutex> guard(stacks().mutex);
    mine.swap(stacks().dropped);
  }
  for (Stack* stack : mine) {
    for (const Stack::Frame& frame : stack->frames) Py_DECREF(frame.code);
    delete stack;
  }
}

// PyTorch releases the GIL before it allocates. On threads that run Python, this takes the GIL
// again for the walk, as PyTorch's own recorder does. Other threads have no frames to show.
void* capture(void*) {
  if (Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) return nullptr;
  if (PyGILState_Check() == 0 && finalizing()) return nullptr;
  py::gil_scoped_acquire gil;
  give_back();
  auto* stack = new Stack;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr) {
    if (stack->frames.size() < Tuning::kPythonFrames) {
      stack->frames.push_back({PyFrame_GetCode(frame), PyFrame_GetLineNumber(frame)});
    }
    PyFrameObject* caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  if (with_native.load(std::memory_order_relaxed)) {
    stack->native.resize(Tuning::kPythonFrames);
    int count = backtrace(stack->native.data(), static_cast<int>(Tuning::kPythonFrames));
    stack->native.resize(static_cast<size_t>(count));
  }
  if (stack->frames.empty()) {
    delete stack;
    return nullptr;
  }
  return stack;
}

void drop(void*, void* context) {
  std::lock_guard<std::mutex> guard(stacks().mutex);
  stacks().dropped.push_back(static_cast<Stack*>(context));
}

size_t describe(void*, void* context, char* text, size_t capacity) {
  if (Py_IsInitialized() == 0 || (PyGILState_Check() == 0 && finalizing())) return 0;
  py::gil_scoped_acquire gil;
  std::string lines;
  for (const Stack::Frame& frame : static_cast<const Stack*>(context)->frames) {
    auto code = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(frame.code));
    lines += (lines.empty() ? "" : "\n") + std::string(py::str(code.attr("co_filename"))) + ":" +
             std::to_string(frame.line) + " " + std::string(py::str(code.attr("co_name")));
  }
  size_t n = std::min(lines.size(), capacity - 1);
  lines.copy(text, n);
  text[n] = '\0';
  return lines.size();
}

// The owner of this module's contexts. A context of other owners is no Stack.
char owner;
const glake_context_hooks kHooks = {sizeof(glake_context_hooks), &owner, capture, drop, describe};

// Returns (library, 0, function) of a C++ frame.
py::tuple native_frame(const void* pc) {
  Dl_info info{};
  bool known = dladdr(static_cast<const char*>(pc) - 1, &info) != 0 && info.dli_fname != nullptr;
  int failed = 1;
  std::unique_ptr<char, decltype(&std::free)> plain(
      known && info.dli_sname != nullptr
          ? abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &failed)
          : nullptr,
      &std::free);
  const char* name = failed == 0 ? plain.get() : known ? info.dli_sname : nullptr;
  return py::make_tuple(known ? info.dli_fname : "??", 0, name != nullptr ? name : "??");
}

// Returns [(filename, line, function)], shared by all that have the same context. It is empty for a
// context of other hooks.
py::list frames_of(const void* context, const void* made_by, py::dict& known) {
  if (context == nullptr || made_by != &owner) return py::list();
  py::int_ key(reinterpret_cast<uintptr_t>(context));
  if (!known.contains(key)) {
    py::list frames;
    for (const Stack::Frame& frame : static_cast<const Stack*>(context)->frames) {
      auto code = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(frame.code));
      frames.append(py::make_tuple(code.attr("co_filename"), frame.line, code.attr("co_name")));
    }
    for (void* pc : static_cast<const Stack*>(context)->native) frames.append(native_frame(pc));
    known[key] = frames;
  }
  return known[key];
}

py::object text_or_none(const char* text) {
  return text != nullptr ? py::object(py::str(text)) : py::none();
}

struct Visit {
  py::list out;
  py::dict known;
};

// The visitors run on this thread and hold the GIL. Glake holds no lock then.
void on_event(void* self, const glake_event* e) {
  auto* visit = static_cast<Visit*>(self);
  visit->out.append(
      py::make_tuple(e->action, e->address, e->bytes, reinterpret_cast<uintptr_t>(e->stream),
                     py::make_tuple(e->pool.first, e->pool.second), e->time_ns,
                     text_or_none(e->tag), frames_of(e->context, e->context_owner, visit->known)));
}

void on_segment(void* self, const glake_segment_info* s) {
  static_cast<Visit*>(self)->out.append(
      py::make_tuple(s->address, s->bytes, reinterpret_cast<uintptr_t>(s->stream),
                     py::make_tuple(s->pool.first, s->pool.second), s->large != 0, s->kind,
                     py::list(), s->paused != 0));
}

void on_block(void* self, const glake_block_record* b) {
  auto* visit = static_cast<Visit*>(self);
  py::tuple segment = visit->out[visit->out.size() - 1];
  py::list blocks = segment[6];
  blocks.append(py::make_tuple(b->address, b->bytes, b->requested, b->state,
                               reinterpret_cast<uintptr_t>(b->stream), text_or_none(b->tag),
                               frames_of(b->context, b->context_owner, visit->known)));
}

py::list history(const py::int_& device) {
  Visit visit;
  check(glake_visit_history(to_device(device), &visit, on_event));
  return visit.out;
}

py::list memory(const py::int_& device) {
  Visit visit;
  check(glake_visit_memory(to_device(device), &visit, on_segment, on_block));
  return visit.out;
}

void record_history(size_t entries, int when, bool clear, bool native) {
  with_native.store(native);
  if (when != GLAKE_CONTEXT_NEVER) check(glake_set_context_hooks(&kHooks));
  check(released([=] { return glake_history(entries, when, clear ? 1 : 0); }));
  give_back();
}

// The C interface does not copy tags, so one copy of each text is kept until the process ends.
void set_tag(const py::object& tag) {
  static auto* texts = new std::unordered_set<std::string>;
  const char* kept = tag.is_none() ? nullptr : texts->insert(py::str(tag)).first->c_str();
  glake_set_tag(kept);
}

std::string findings() {
  std::string text(1 << 14, '\0');
  for (;;) {
    size_t length = released([&] { return glake_findings(&text[0], text.size()); });
    if (length == 0 && glake_last_error(nullptr, 0) != GLAKE_OK) raise_last();
    if (length < text.size()) {
      text.resize(length);
      return text;
    }
    text.assign(length + 1024, '\0');
  }
}

}  // namespace

void bind_watch(py::module_& module) {
  module.def("record_history", &record_history, py::arg("entries"), py::arg("when"),
             py::arg("clear") = false, py::arg("cpp") = false,
             "Keeps the last `entries` events of each device; `when`: which carry a stack.");
  module.def("history", &history, py::arg("device") = 0,
             "[(action, address, bytes, stream, pool, time_ns, tag, frames)], oldest first.");
  module.def(
      "memory", &memory, py::arg("device") = 0,
      "[(address, bytes, stream, pool, large, kind, blocks, paused)]; a block is (address, bytes, "
      "requested, state, stream, tag, frames).");
  module.def("set_tag", &set_tag, py::arg("tag"),
             "A name for the calling thread's later blocks; None: no name.");
  module.def("findings", &findings, "What the debug modes found and nobody has read; \"\": none.");
  module.def(
      "use_python_stacks", [] { check(glake_set_context_hooks(&kHooks)); },
      "Contexts are Python stacks from now on, on threads that run Python.");
}

}  // namespace glake::python
