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
  uint64_t step = 0;  // as the trace numbers it
  DriverCalls calls;
  std::vector<DriverTime> times;  // by table
};

struct OutOfMemory {
  uint64_t event = 0;            // index of the failing event, 0-based
  std::optional<uint64_t> step;  // null during set-up
  std::string message;
};

// Largest values of a run of events; `event` is the first of them.
struct TimelinePoint {
  uint64_t event = 0;
  uint64_t live = 0;
  uint64_t physical = 0;
};

// After an out-of-memory everything speaks of the events before it, and per-step figures of the
// steps completed; they are null when there is none.
struct ReplayResult {
  uint64_t events = 0;  // replayed
  // The first event with the most physical memory; after an out-of-memory the last one replayed.
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
  std::optional<Layout> layout;  // as asked for; null if that moment did not come
};

struct ReplayOptions {
  PolicyConfig device;
  std::vector<std::string> costs;     // tables to price the calls by (price_tables)
  std::optional<uint64_t> layout_at;  // the event after which to keep the device's layout
  // Where memory runs out, the layout is that which the refused request left, whatever layout_at
  // is.
  bool layout_at_oom = false;
  size_t timeline_points = 2000;
  // Called now and then with the share of events done (0..1); may throw to stop the replay.
  std::function<void(double)> progress;
};

ReplayResult replay(const Trace& trace, const std::string& policy, const ReplayOptions& options);

// The smallest capacity in bytes, to 0.1 %, at which the trace replays without running out of
// memory, by bisection between the peak live bytes and what the policy takes without limit; null if
// it does not fit at eight times its peak live bytes. A policy may run at one capacity and fail at
// a larger one (PyTorch's does): then this is one boundary of several.
std::optional<uint64_t> find_min_capacity(const Trace& trace, const std::string& policy,
                                          ReplayOptions options);

}  // namespace glake::replay
