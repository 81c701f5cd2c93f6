// Python binding of the replay engine.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "replay/engine.h"
#include "replay/policy.h"
#include "trace.h"
#include "unlocked.h"

namespace py = pybind11;

namespace glake::replay {
namespace {

py::list times_of(const std::vector<DriverTime>& times) {
  py::list out;
  for (const DriverTime& time : times) {
    py::dict each;
    each["driver_us"] = time.all;
    each["growth_us"] = time.growth;
    each["event_us"] = time.events;
    out.append(each);
  }
  return out;
}

py::list steps_of(const ReplayResult& result) {
  py::list steps;
  for (const StepCost& step : result.steps) {
    py::dict each;
    each["step"] = step.step;
    each["driver_calls"] = step.calls.of_memory();
    each["event_calls"] = step.calls.of_events();
    each["stream_waits"] = step.calls.waits();
    each["times"] = times_of(step.times);
    steps.append(each);
  }
  return steps;
}

py::dict timeline_of(const ReplayResult& result) {
  py::list events, live, physical;
  for (const TimelinePoint& point : result.timeline) {
    events.append(point.event);
    live.append(point.live);
    physical.append(point.physical);
  }
  py::dict timeline;
  timeline["event"] = events;
  timeline["live"] = live;
  timeline["physical"] = physical;
  return timeline;
}

py::object oom_of(const Trace& trace, const ReplayResult& result) {
  if (!result.oom) return py::none();
  py::dict oom;
  oom["event"] = result.oom->event;
  oom["step"] = result.oom->step;
  oom["message"] = result.oom->message;
  const bool tagged = trace.tags.size() > 1;
  oom["holders"] = tagged ? holders_of(trace, result.oom->event) : py::list();
  return std::move(oom);
}

const char* word(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kOwn:
      return "own";
    case PolicyKind::kModel:
      return "model";
    case PolicyKind::kBound:
      return "bound";
  }
  return "";
}

const char* state_name(BlockState state) {
  switch (state) {
    case BlockState::kLive:
      return "live";
    case BlockState::kFree:
      return "free";
    case BlockState::kPending:
      return "pending";
  }
  return "";
}

py::object layout_of(const ReplayResult& result) {
  if (!result.layout) return py::none();
  py::list segments;
  for (const LayoutSegment& segment : *result.layout) {
    py::list blocks;
    for (const LayoutBlock& block : segment.blocks) {
      py::list each;
      each.append(block.offset);
      each.append(block.bytes);
      each.append(state_name(block.state));
      each.append(block.stream);
      blocks.append(each);
    }
    py::dict each;
    each["name"] = segment.name;
    each["bytes"] = segment.bytes;
    each["blocks"] = blocks;
    segments.append(each);
  }
  return std::move(segments);
}

py::dict to_dict(const Trace& trace, const ReplayResult& result,
                 std::optional<uint64_t> min_capacity) {
  py::dict out;
  out["events"] = result.events;
  out["peak_live_bytes"] = result.peak_live_bytes;
  out["peak_physical_bytes"] = result.peak_physical_bytes;
  out["time_avg_utilisation"] = result.time_avg_utilisation;
  out["min_capacity_bytes"] = min_capacity;
  out["driver_calls"] = result.calls.of_memory();
  out["event_calls"] = result.calls.of_events();
  out["stream_waits"] = result.calls.waits();
  out["times"] = times_of(result.times);
  out["host_ns_alloc"] = result.host_ns_alloc;
  out["host_ns_free"] = result.host_ns_free;
  out["oom"] = oom_of(trace, result);
  out["steps"] = steps_of(result);
  out["timeline"] = timeline_of(result);
  out["peak_event"] = result.peak_event;
  out["layout"] = layout_of(result);
  return out;
}

py::dict replay_trace(const Trace& trace, const std::string& policy,
                      std::optional<uint64_t> capacity, int64_t complete_after,
                      bool with_min_capacity, size_t timeline_points,
                      const std::string& driver_path, const py::object& progress,
                      std::optional<uint64_t> layout_at, const std::vector<std::string>& costs,
                      bool layout_at_oom) {
  ReplayOptions options;
  options.layout_at = layout_at;
  options.layout_at_oom = layout_at_oom;
  options.device = {capacity.value_or(kUnlimited), complete_after, driver_path};
  options.timeline_points = timeline_points;
  options.costs = costs;
  options.progress = [&progress](double share) {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!progress.is_none()) progress(share);
  };
  ReplayResult result;
  std::optional<uint64_t> min_capacity;
  {
    const Unlocked unlocked;
    result = replay(trace, policy, options);
    if (with_min_capacity) min_capacity = find_min_capacity(trace, policy, options);
  }
  return to_dict(trace, result, min_capacity);
}

}  // namespace

void bind_replay(py::module_& module) {
  bind_trace(module);
  static const py::handle replay_error =
      py::object(py::module_::import("glake.errors").attr("ReplayError")).release();
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const ReplayError& error) {
      PyErr_SetString(replay_error.ptr(), error.what());
    }
  });
  module.def(
      "replay_policies",
      [] {
        std::vector<std::tuple<std::string, std::string, const char*>> out;
        for (const PolicyTitle& each : policies()) {
          out.emplace_back(each.name, each.title, word(each.kind));
        }
        return out;
      },
      "(name that `replay` takes, title, kind) of every policy.");
  module.def("require_policy", &require_policy, py::arg("name"),
             "Raises ReplayError, which lists the policies, if `replay` does not know this one.");
  module.def(
      "require_costs", [](const std::vector<std::string>& names) { price_tables("", names); },
      py::arg("names"),
      "Raises ReplayError if the simulator lacks a price table of one of these names.");
  module.def("replay", &replay_trace, py::arg("trace"), py::arg("policy"),
             py::arg("capacity") = py::none(), py::arg("complete_after") = 0,
             py::arg("find_min_capacity") = false, py::arg("timeline_points") = 2000,
             py::arg("driver_path") = "", py::arg("progress") = py::none(),
             py::arg("layout_at") = py::none(), py::arg("costs") = std::vector<std::string>(),
             py::arg("layout_at_oom") = false,
             "Replays a trace through a policy; see glake.trace.replay.");
}

}  // namespace glake::replay
