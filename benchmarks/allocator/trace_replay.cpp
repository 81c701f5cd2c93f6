// The host's cost of each allocation and free of recorded jobs, and the modelled time of the driver
// calls they lead to.
//
//   trace_replay --trace FILE[,FILE...] [--rounds N] [--capacity X]     plain text traces
//
// Every policy goes through the same loop. Models of other allocators are behind the lock that
// PyTorch takes. `alloc_*` and `free_*` are the calls that mapped and unmapped nothing. The others
// take mostly the simulated driver's own time, which says nothing about a GPU. `driver_ms` is their
// modelled time. A first replay, which is not timed, finds out which calls these are (a policy does
// the same each time), so that nothing comes between the timed calls. Each trace has two cases: a
// device of 80 GiB (or of twice the peak live bytes if that is more), and one of X times the peak
// live bytes. If memory runs out, all figures except `events_done` are missing.
#include <fstream>
#include <map>

#include "replay/trace.h"
#include "subjects.h"

namespace bench {
namespace {

using glake::replay::Event;
using glake::replay::Op;
using glake::replay::Trace;

// glibc's malloc as a policy.
class Glibc : public Policy {
 public:
  uint64_t allocate(uint64_t bytes, uint32_t) override {
    return reinterpret_cast<uintptr_t>(heap_.allocate(bytes));
  }
  void release(uint64_t block) override {
    heap_.release(reinterpret_cast<void*>(static_cast<uintptr_t>(block)));
  }
  void record_stream(uint64_t, uint32_t) override {}
  void tick() override {}
  uint64_t physical_bytes() const override { return 0; }
  DriverCalls calls() const override { return {}; }
  DriverCalls growth_calls(uint64_t) const override { return {}; }
  std::string oom_message() const override { return "malloc failed"; }

 private:
  GlibcSubject heap_;
};

Trace load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  const size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  glake::replay::TraceBuilder builder(name);
  glake::replay::TraceParser parser(name, builder);
  std::string chunk(1 << 16, '\0');
  while (file.read(chunk.data(), static_cast<std::streamsize>(chunk.size())), file.gcount() > 0) {
    parser.feed({chunk.data(), static_cast<size_t>(file.gcount())});
  }
  parser.finish();
  return builder.take();
}

int64_t clock_cost() {
  Samples samples;
  for (int i = 0; i < 100000; ++i) {
    const int64_t from = ticks();
    samples.add(ticks() - from);
  }
  return samples.quantile_ticks(0.5);
}

struct Times {
  Samples allocations, frees;  // calls that mapped nothing
  double driver_ns = 0;        // modelled, of all other calls
  uint64_t events = 0;
  bool fits = true;
};

using Mapping = std::vector<bool>;  // whether an event maps or unmaps memory

class Player {
 public:
  // Fills in `found` if `known` is null.
  Player(const Trace& trace, Policy& policy, bool locked, const Mapping* known, Mapping* found)
      : trace_(trace), policy_(policy), locked_(locked), known_(known), found_(found) {
    blocks_.resize(std::max(trace.indices, 1u), 0);
  }
  ~Player() {
    for (const uint64_t block : blocks_) {
      if (block != 0) policy_.release(block);
    }
  }
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  Times play() {
    for (const Event& event : trace_.events) {
      if (!apply(event)) {
        times_.fits = false;
        break;
      }
      ++times_.events;
    }
    return std::move(times_);
  }

 private:
  bool apply(const Event& event) {
    if (event.op == Op::kStep) return true;
    uint64_t& block = blocks_[event.index];
    switch (event.op) {
      case Op::kAlloc:
        time(times_.allocations, [&] { block = policy_.allocate(event.value, event.stream); });
        return block != 0;
      case Op::kFree: {
        const uint64_t freed = block;
        block = 0;
        time(times_.frees, [&] { policy_.release(freed); });
        return true;
      }
      default:
        policy_.record_stream(block, event.stream);
        return true;
    }
  }

  template <typename Call>
  void time(Samples& hits, Call call) {
    const int64_t from = ticks();
    if (locked_) {
      const std::lock_guard<std::recursive_mutex> held(lock_);
      call();
    } else {
      call();
    }
    const int64_t taken = ticks() - from;
    if (known_ == nullptr) {
      const uint64_t calls = policy_.calls().of_memory();
      (*found_)[times_.events] = calls != calls_;
      calls_ = calls;
    } else if ((*known_)[times_.events]) {
      times_.driver_ns += ns_per_tick() * static_cast<double>(taken);
    } else {
      hits.add(taken);
    }
  }

  const Trace& trace_;
  Policy& policy_;
  const bool locked_;
  const Mapping* known_;
  Mapping* found_;
  std::vector<uint64_t> blocks_;  // by slot; 0: not live
  std::recursive_mutex lock_;
  uint64_t calls_ = 0;
  Times times_;
};

std::unique_ptr<Policy> fresh(const std::string& name, uint64_t capacity) {
  if (name == kGlibc) return std::make_unique<Glibc>();
  return make_policy(name, device_of(capacity));
}

void measure(const Trace& trace, const std::string& label, const std::string& name,
             uint64_t capacity, int64_t cost, std::map<std::string, Mapping>& mappings,
             Report& report) {
  const bool locked = name != kGlibc && !is_ours(name);
  if (mappings.count(name) == 0) {
    Mapping found(trace.events.size());
    Player(trace, *fresh(name, capacity), locked, nullptr, &found).play();
    mappings[name] = std::move(found);
  }
  const std::unique_ptr<Policy> policy = fresh(name, capacity);
  Times times = Player(trace, *policy, locked, &mappings[name], nullptr).play();
  const double missing = std::nan("");
  const auto add = [&](const char* metric, double value) {
    report.add(label, name, metric, times.fits ? value : missing);
  };
  add("alloc_p50_ns", times.allocations.quantile(0.5, cost));
  add("alloc_p99_ns", times.allocations.quantile(0.99, cost));
  add("alloc_mean_ns", times.allocations.mean(cost));
  add("free_p50_ns", times.frees.quantile(0.5, cost));
  add("free_p99_ns", times.frees.quantile(0.99, cost));
  add("free_mean_ns", times.frees.mean(cost));
  const bool driver = name != kGlibc;
  const double steps = static_cast<double>(std::max<uint64_t>(trace.steps, 1));
  add("driver_calls_per_step",
      driver ? static_cast<double>(policy->calls().of_memory()) / steps : missing);
  const Modelled us = modelled_us(policy->calls());
  add("driver_ms_per_step", driver ? us.published * 1e-3 / steps : missing);
  add("driver_ms_per_step_a100", driver ? us.a100_kvcached * 1e-3 / steps : missing);
  add("simulator_ms", times.driver_ns * 1e-6);
  report.add(label, name, "events_done",
             static_cast<double>(times.events) / static_cast<double>(trace.events.size()));
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t from = 0; from <= list.size();) {
    const size_t comma = std::min(list.find(',', from), list.size());
    parts.push_back(list.substr(from, comma - from));
    from = comma + 1;
  }
  return parts;
}

void body(int argc, char** argv) {
  Arguments arguments(argc, argv, {{"trace", ""}, {"rounds", "5"}, {"capacity", "1.05"}});
  const double times = arguments.number("capacity");
  char factor[32];
  std::snprintf(factor, sizeof factor, "%g", times);
  std::vector<std::string> subjects = models();
  subjects.insert(subjects.begin(), {kGlake, kCompact});
  std::vector<std::string> ample = subjects;
  ample.push_back(kGlibc);
  const int64_t cost = clock_cost();
  Report report("trace_replay");
  for (const std::string& path : split(arguments.text("trace"))) {
    const Trace trace = load(path);
    const auto capacity = static_cast<uint64_t>(static_cast<double>(trace.peak_live_bytes) * times);
    std::map<std::string, Mapping> mappings;
    const uint64_t roomy = std::max(kDeviceBytes, 2 * trace.peak_live_bytes);
    alternate(ample, arguments.count("rounds"), [&](const std::string& name) {
      measure(trace, trace.name, name, roomy, cost, mappings, report);
    });
    mappings.clear();
    const std::string tight = trace.name + ", " + factor + " x live";
    alternate(subjects, arguments.count("rounds"), [&](const std::string& name) {
      measure(trace, tight, name, capacity, cost, mappings, report);
    });
  }
  report.print();
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run("trace_replay", [&] { bench::body(argc, argv); });
}
