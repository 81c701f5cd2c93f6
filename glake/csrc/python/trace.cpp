#include "trace.h"

#include <pybind11/stl.h>

#include <exception>

#include "base/tuning.h"
#include "replay/facts.h"
#include "replay/holder_counter.h"
#include "replay/steps.h"

namespace py = pybind11;

namespace glake::replay {
namespace {

constexpr const char* kLetters[] = {"a", "f", "r", "s"};
constexpr uint64_t kMostPoints = uint64_t{1} << 32;

py::object text(std::string_view utf8) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(decoded);
}

template <typename Enough>
void feed_until(TraceParser& parser, const py::iterable& chunks, const Enough& enough) {
  try {
    for (const py::handle chunk : chunks) {
      parser.feed(py::cast<py::bytes>(chunk));
      if (enough()) return;
    }
  } catch (py::error_already_set& error) {
    // The source may have broken off, as a truncated gzip does. The line tells the caller how far
    // the source got.
    error.restore();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    py::setattr(value, "trace_line", py::int_(parser.line()));
    PyErr_Restore(type, value, traceback);
    throw py::error_already_set();
  }
  parser.finish();
}

std::shared_ptr<Trace> parse_trace(const std::string& name, const py::iterable& chunks) {
  TraceBuilder builder(name);
  TraceParser parser(name, builder);
  feed_until(parser, chunks, [] { return false; });
  return std::make_shared<Trace>(builder.take());
}

// Gives events as Python tuples while the text comes in. The events before a bad line are still
// given. The error comes with the next call.
class TraceStream : public TraceSink {
 public:
  explicit TraceStream(const std::string& name) : parser_(name, *this) {}

  py::list feed(const py::bytes& chunk) {
    return read([&] { parser_.feed(std::string_view(chunk)); });
  }
  py::list finish() {
    return read([&] { parser_.finish(); });
  }
  void check() const {
    if (error_) std::rethrow_exception(error_);
  }
  uint64_t line() const { return parser_.line(); }
  const py::dict& header() const { return header_; }

  void event(const ParsedEvent& event) override {
    const py::object& tag = event.tag.empty() ? no_tag_ : decoded(event.tag);
    events_.append(py::make_tuple(letters_[static_cast<size_t>(event.op)], event.id, event.bytes,
                                  event.stream, tag, parser_.line()));
  }
  void fact(std::string_view key, std::string_view value) override {
    header_[text(key)] = text(value);
  }

 private:
  template <typename Read>
  py::list read(const Read& read) {
    check();
    events_ = py::list();
    try {
      read();
    } catch (const TraceError&) {
      error_ = std::current_exception();
    }
    return std::move(events_);
  }

  // Jobs repeat their tags, so a few strings serve all events.
  const py::object& decoded(std::string_view tag) {
    if (tags_.size() >= Tuning::kTagsKept) tags_.clear();
    py::object& kept = tags_[std::string(tag)];
    if (!kept) kept = text(tag);
    return kept;
  }

  TraceParser parser_;
  py::list events_;
  py::dict header_;
  std::exception_ptr error_;
  const py::object no_tag_ = py::str("");
  const py::object letters_[4] = {py::str(kLetters[0]), py::str(kLetters[1]), py::str(kLetters[2]),
                                  py::str(kLetters[3])};
  std::unordered_map<std::string, py::object> tags_;
};

void bind_error() {
  static const py::handle trace_error =
      py::object(py::module_::import("glake.errors").attr("TraceError")).release();
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const TraceError& error) {
      py::object value = trace_error(text(error.what()));
      value.attr("file") = text(error.file());
      value.attr("line") = error.line();
      value.attr("field") = error.field();
      PyErr_SetObject(trace_error.ptr(), value.ptr());
    }
  });
}

py::dict header_of(const std::vector<std::pair<std::string, std::string>>& facts) {
  py::dict header;
  for (const auto& [key, value] : facts) header[text(key)] = text(value);
  return header;
}

py::list tags_of(const Trace& trace) {
  py::list tags;
  for (const std::string& tag : trace.tags) tags.append(text(tag));
  return tags;
}

py::list step_spans_of(const Trace& trace) {
  py::list spans;
  for (const StepSpan& span : step_spans(trace)) {
    py::dict each;
    each["step"] = span.step;
    each["first_event"] = span.first_event;
    each["events"] = span.events;
    each["start_live"] = span.start_live;
    each["peak_live"] = span.peak_live;
    each["peak_event"] = span.peak_event;
    spans.append(each);
  }
  return spans;
}

// A whole number up to `most`, from Python. Raises WrongType, or InvalidArgument with `limit`.
uint64_t whole(const char* name, const py::object& value, uint64_t least, uint64_t most,
               const std::string& limit) {
  const py::object number = py::module_::import("glake.arguments").attr("count")(name, value);
  const bool fits =
      number.attr("__ge__")(least).cast<bool>() && number.attr("__le__")(most).cast<bool>();
  if (fits) return number.cast<uint64_t>();
  const py::object kind = py::module_::import("glake.errors").attr("InvalidArgument");
  const std::string text = std::string(name) + " " + py::str(number).cast<std::string>() + limit;
  py::set_error(kind, text.c_str());
  throw py::error_already_set();
}

uint64_t events_until(const Trace& trace, const py::object& event) {
  const uint64_t count = trace.events.size();
  if (count == 0) return 0;
  return 1 + whole("event", event, 0, count - 1,
                   ": the trace has events 0 to " + std::to_string(count - 1));
}

py::list named(const Trace& trace, const std::vector<Holder>& holders) {
  py::list out;
  for (const Holder& holder : holders) {
    out.append(py::make_tuple(text(trace.tags[holder.tag]), holder.bytes, holder.blocks));
  }
  return out;
}

py::list holders_at(const Trace& trace, const py::object& event) {
  return named(trace, trace.holders_after(events_until(trace, event)));
}

py::list lasting_at(const Trace& trace, const py::object& event) {
  return named(trace, trace.lasting_after(events_until(trace, event)));
}

auto live_timeline_of(const Trace& trace, const py::object& points) {
  return trace.live_timeline(whole("points", points, 1, kMostPoints, ": 1 to 2^32"));
}

py::dict scan_trace(const std::string& name, const py::iterable& chunks) {
  FigureCounter counter;
  TraceParser parser(name, counter);
  feed_until(parser, chunks, [] { return false; });
  const TraceFigures& found = counter.figures();
  py::list classes, streams;
  for (const auto& [exponent, tally] : found.size_classes) {
    classes.append(py::make_tuple(uint64_t{1} << exponent, tally.count, tally.bytes));
  }
  for (const auto& [stream, use] : found.streams) {
    streams.append(py::make_tuple(stream, use.allocated.count, use.allocated.bytes, use.recorded));
  }
  py::dict out;
  out["header"] = header_of(counter.header());
  out["allocations"] = found.allocations;
  out["frees"] = found.frees;
  out["record_streams"] = found.record_streams;
  out["steps"] = found.steps;
  out["first_step"] = found.first_step;
  out["last_step"] = found.last_step;
  out["peak_live_bytes"] = found.peak_live_bytes;
  out["peak_event"] = found.peak_event;
  out["peak_step"] = found.peak_step;
  out["peak_live_blocks"] = found.peak_live_blocks;
  out["end_live_bytes"] = found.end_live_bytes;
  out["end_live_blocks"] = found.end_live_blocks;
  out["tagged_allocations"] = found.tagged_allocations;
  out["size_classes"] = classes;
  out["streams"] = streams;
  return out;
}

py::list scan_holders(const std::string& name, const py::iterable& chunks, uint64_t event) {
  HolderCounter counter(event);
  TraceParser parser(name, counter);
  feed_until(parser, chunks, [&] { return counter.done(); });
  py::list holders;
  for (const auto& [tag, held] : counter.by_tag()) {
    holders.append(py::make_tuple(text(tag), held.bytes, held.count));
  }
  return holders;
}

void bind_scans(py::module_& module) {
  module.def(
      "scan_trace", &scan_trace, py::arg("name"), py::arg("chunks"),
      "A trace's figures. Takes memory for live blocks only. Raises what parse_trace raises.");
  module.def("scan_holders", &scan_holders, py::arg("name"), py::arg("chunks"), py::arg("event"),
             "[(tag, bytes, blocks), ...] of what is live after an event, in no order.");
}

}  // namespace

py::list holders_of(const Trace& trace, uint64_t events) {
  return named(trace, trace.holders_after(events));
}

void bind_trace(py::module_& module) {
  bind_error();
  py::class_<Trace, std::shared_ptr<Trace>>(module, "Trace",
                                            "An allocation trace, parsed (docs/trace-format.md).")
      .def_readonly("name", &Trace::name)
      .def_property_readonly("header", [](const Trace& trace) { return header_of(trace.header); })
      .def_property_readonly("tags", &tags_of, "Distinct tags; the first is \"\", untagged.")
      .def_property_readonly("events", [](const Trace& trace) { return trace.events.size(); })
      .def_readonly("allocations", &Trace::allocations)
      .def_readonly("frees", &Trace::frees)
      .def_readonly("steps", &Trace::steps)
      .def_readonly("peak_live_bytes", &Trace::peak_live_bytes)
      .def_readonly("peak_live_event", &Trace::peak_live_event)
      .def_readonly("end_live_bytes", &Trace::end_live_bytes)
      .def("holders", &holders_at, py::arg("event"),
           "[(tag, bytes, blocks), ...] of what is live after an event (from 0), largest first.")
      .def("lasting", &lasting_at, py::arg("event"),
           "The part of holders(event) in blocks that outlive their step.")
      .def("live_timeline", &live_timeline_of, py::arg("points"),
           "[(event, live bytes), ...]: most live bytes of at most `points` runs of events.")
      .def("step_spans", &step_spans_of, "Live bytes of set-up and of each step (replay/steps.h).")
      .def("sizes", &Trace::sizes, "[(bytes, allocations), ...], smallest size first.");
  module.def(
      "parse_trace", &parse_trace, py::arg("name"), py::arg("chunks"),
      "Parses the bytes objects of `chunks` as one trace. Raises TraceError (file, line, field).");
  bind_scans(module);
  py::class_<TraceStream>(module, "TraceStream", "A trace's events as its text comes in.")
      .def(py::init<const std::string&>(), py::arg("name"))
      .def("feed", &TraceStream::feed, py::arg("chunk"),
           "(op, id, bytes, stream, tag, line) of each event of the next bytes.")
      .def("finish", &TraceStream::finish, "Says that the text has ended; returns the last events.")
      .def("check", &TraceStream::check, "Raises the TraceError that ended the last call's list.")
      .def_property_readonly("line", &TraceStream::line)
      .def_property_readonly("header", &TraceStream::header);
}

}  // namespace glake::replay
