// The replay loop, its clocks, and the bisection for the smallest capacity.
#include "engine.h"

#include <algorithm>
#include <chrono>

namespace glake::replay {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kProgressEvents = 4096;
constexpr uint64_t kGranuleBytes = uint64_t{2} << 20;

double nanoseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::nano>(to - from).count();
}

std::optional<double> median(std::vector<float>& samples) {
  if (samples.empty()) return std::nullopt;
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return static_cast<double>(*middle);
}

double clock_overhead_ns() {
  std::vector<float> samples;
  for (int i = 0; i < 1001; ++i) {
    const Clock::time_point from = Clock::now();
    samples.push_back(static_cast<float>(nanoseconds(from, Clock::now())));
  }
  return *median(samples);
}

class Replay {
 public:
  Replay(const Trace& trace, Policy& policy, const ReplayOptions& options)
      : trace_(trace),
        policy_(policy),
        options_(options),
        blocks_(std::max(trace.indices, 1u), 0),
        tables_(price_tables(options.device.driver_path, options.costs)) {
    const size_t points = std::max<size_t>(options.timeline_points, 1);
    bucket_ = std::max<size_t>((trace.events.size() + points - 1) / points, 1);
  }
  ~Replay() { release_all(); }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  ReplayResult run();

 private:
  bool apply(const Event& event);
  void observe();
  void begin_step(uint64_t step);
  void end_step();
  std::vector<DriverTime> times(const DriverCalls& calls, const DriverCalls& growth) const;
  void release_all() noexcept;

  const Trace& trace_;
  Policy& policy_;
  const ReplayOptions& options_;
  std::vector<uint64_t> blocks_;  // by index; 0 = not live
  size_t bucket_;
  ReplayResult result_;
  uint64_t live_ = 0;
  double utilisation_sum_ = 0;
  uint64_t utilisation_events_ = 0;
  std::vector<float> alloc_ns_;
  std::vector<float> free_ns_;
  std::optional<uint64_t> step_;
  const std::vector<PriceTable> tables_;
  DriverCalls growth_;                    // so far
  DriverCalls step_calls_, step_growth_;  // at the step's begin
};

ReplayResult Replay::run() {
  alloc_ns_.reserve(trace_.allocations);
  free_ns_.reserve(trace_.frees);
  for (const Event& event : trace_.events) {
    if (options_.progress && result_.events % kProgressEvents == 0) {
      options_.progress(static_cast<double>(result_.events) /
                        static_cast<double>(trace_.events.size()));
    }
    if (!apply(event)) {
      result_.oom = OutOfMemory{result_.events, step_, policy_.oom_message()};
      if (result_.events > 0) result_.peak_event = result_.events - 1;
      if (options_.layout_at_oom) result_.layout = policy_.layout();
      break;
    }
    policy_.tick();
    observe();
  }
  if (!result_.oom) end_step();
  if (utilisation_events_ > 0) {
    result_.time_avg_utilisation = utilisation_sum_ / static_cast<double>(utilisation_events_);
  }
  result_.calls = policy_.calls();
  result_.times = times(result_.calls, growth_);
  policy_.check();
  const double overhead = clock_overhead_ns();
  const auto net = [overhead](std::optional<double> ns) {
    if (ns) ns = std::max(*ns - overhead, 0.0);
    return ns;
  };
  result_.host_ns_alloc = net(median(alloc_ns_));
  result_.host_ns_free = net(median(free_ns_));
  return std::move(result_);
}

// Returns false if the policy is out of memory.
bool Replay::apply(const Event& event) {
  uint64_t& block = blocks_[event.op == Op::kStep ? 0 : event.index];
  switch (event.op) {
    case Op::kAlloc: {
      const Clock::time_point from = Clock::now();
      block = policy_.allocate(event.value, event.stream);
      alloc_ns_.push_back(static_cast<float>(nanoseconds(from, Clock::now())));
      if (block == 0) return false;
      live_ += event.value;
      break;
    }
    case Op::kFree: {
      const uint64_t freed = block;
      block = 0;
      const Clock::time_point from = Clock::now();
      policy_.release(freed);
      free_ns_.push_back(static_cast<float>(nanoseconds(from, Clock::now())));
      live_ -= event.value;
      break;
    }
    case Op::kRecordStream:
      policy_.record_stream(block, event.stream);
      break;
    case Op::kStep:
      end_step();
      begin_step(event.value);
      break;
  }
  return true;
}

void Replay::observe() {
  const uint64_t physical = policy_.physical_bytes();
  result_.peak_live_bytes = std::max(result_.peak_live_bytes, live_);
  if (physical > result_.peak_physical_bytes) {
    growth_ += policy_.growth_calls(physical - result_.peak_physical_bytes);
  }
  if (!result_.peak_event || physical > result_.peak_physical_bytes) {
    result_.peak_physical_bytes = physical;
    result_.peak_event = result_.events;
  }
  if (options_.layout_at == result_.events) result_.layout = policy_.layout();
  if (physical > 0) {
    utilisation_sum_ += static_cast<double>(live_) / static_cast<double>(physical);
    ++utilisation_events_;
  }
  if (result_.events % bucket_ == 0) result_.timeline.push_back({result_.events, 0, 0});
  TimelinePoint& point = result_.timeline.back();
  point.live = std::max(point.live, live_);
  point.physical = std::max(point.physical, physical);
  ++result_.events;
}

void Replay::begin_step(uint64_t step) {
  step_ = step;
  step_calls_ = policy_.calls();
  step_growth_ = growth_;
}

void Replay::end_step() {
  if (!step_) return;
  const DriverCalls calls = policy_.calls() - step_calls_;
  result_.steps.push_back({*step_, calls, times(calls, growth_ - step_growth_)});
}

std::vector<DriverTime> Replay::times(const DriverCalls& calls, const DriverCalls& growth) const {
  std::vector<DriverTime> out;
  for (const PriceTable& table : tables_) out.push_back(table.of(calls, growth));
  return out;
}

// After an error the policy may refuse to release a block. Its destructor then deals with what is
// left.
void Replay::release_all() noexcept {
  for (uint64_t& block : blocks_) {
    if (block == 0) continue;
    try {
      policy_.release(block);
    } catch (const ReplayError&) {
    }
    block = 0;
  }
}

}  // namespace

ReplayResult replay(const Trace& trace, const std::string& policy, const ReplayOptions& options) {
  const std::unique_ptr<Policy> device = make_policy(policy, options.device);
  return Replay(trace, *device, options).run();
}

std::optional<uint64_t> find_min_capacity(const Trace& trace, const std::string& policy,
                                          ReplayOptions options) {
  options.layout_at.reset();
  options.layout_at_oom = false;
  options.costs.clear();
  const auto run_at = [&](uint64_t capacity) {
    options.device.capacity = capacity;
    return replay(trace, policy, options);
  };
  const uint64_t live = trace.peak_live_bytes;
  if (live == 0) return 0;
  if (live > kMostBytes) return std::nullopt;
  // No policy can do with fewer bytes than are live, and none takes less than a granule.
  uint64_t fails = std::max(live, kGranuleBytes) - 1;
  // The memory that the policy takes without a limit is enough, unless a limit changes what it
  // does.
  uint64_t fits = std::max(run_at(kUnlimited).peak_physical_bytes, fails + 1);
  while (run_at(fits).oom) {
    if ((fits > 8 * live && fits > 64 * kGranuleBytes) || fits == kMostBytes) return std::nullopt;
    fails = fits;
    fits = std::min(fits + std::max(fits / 8, kGranuleBytes), kMostBytes);
  }
  while (fits - fails > std::max<uint64_t>(fits / 1000, 1)) {
    const uint64_t middle = fails + (fits - fails) / 2;
    (run_at(middle).oom ? fails : fits) = middle;
  }
  return fits;
}

}  // namespace glake::replay
