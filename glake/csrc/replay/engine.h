// Replays a trace through a policy and measures it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "policy.h"
#include "trace.h"

namespace glake::replay {

struct StepCost {
  uint64_t step = 0;  // its number in the trace
  DriverCalls calls;
  std::vector<DriverTime> times;  // by table
};

struct OutOfMemory {
  uint64_t event = 0;            // index of the failing event, 0-based
  std::optional<uint64_t> step;  // null during set-up
  std::string message;
};

// The largest values in a run of events. `event` is the first event of the run.
struct TimelinePoint {
  uint64_t event = 0;
  uint64_t live = 0;
  uint64_t physical = 0;
};

// If memory runs out, all figures are about the events before that, and `steps` has the completed
// steps.
struct ReplayResult {
  uint64_t events = 0;  // replayed
  // The first event with the most physical memory. If memory runs out, it is the last event
  // replayed.
  std::optional<uint64_t> peak_event;
  uint64_t peak_live_bytes = 0;
  uint64_t peak_physical_bytes = 0;
  double time_avg_utilisation = 0;  // mean of live / physical over events with physical memory
  DriverCalls calls;
  std::vector<DriverTime> times;  // by table
  std::vector<StepCost> steps;
  std::optional<double> host_ns_alloc;  // median of one call, less the clock's own cost
  std::optional<double> host_ns_free;
  std::optional<OutOfMemory> oom;
  std::vector<TimelinePoint> timeline;
  std::optional<Layout> layout;  // null if none was asked for, or that event was not reached
};

struct ReplayOptions {
  PolicyConfig device;
  std::vector<std::string> costs;     // names of tables to price the calls by (price_tables)
  std::optional<uint64_t> layout_at;  // store the layout after this event
  // True: if memory runs out, the layout at the refused request is stored, even if layout_at is
  // set.
  bool layout_at_oom = false;
  size_t timeline_points = 2000;
  // Called now and then with the part of the events that is done (0..1). It may throw to stop the
  // replay.
  std::function<void(double)> progress;
};

ReplayResult replay(const Trace& trace, const std::string& policy, const ReplayOptions& options);

// The smallest capacity in bytes, to 0.1 %, at which the trace replays without running out of
// memory. It is found by bisection between the peak live bytes and what the policy takes without a
// limit. Null if the trace does not fit at eight times its peak live bytes. A policy may succeed at
// one capacity and fail at a larger one, as PyTorch's does. Then there are several such boundaries,
// and the result is one of them.
std::optional<uint64_t> find_min_capacity(const Trace& trace, const std::string& policy,
                                          ReplayOptions options);

}  // namespace glake::replay
