// What the allocator benchmarks share: clocks, quantiles, arguments and the JSON that they print.
//
// A program measures every subject of a case in turn, `rounds` times over, so that all meet the
// same noise, and prints one line of JSON for each case and subject: {"pattern", "case", "subject",
// "rounds": {metric: [a value for each round, or null]}}. common.py reads them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace bench {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGranule = 2 * kMiB;

inline int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Reads the processor's time stamp counter where it has one, as reading a clock costs as much as a
// hit.
#if defined(__x86_64__)
inline int64_t ticks() { return static_cast<int64_t>(__rdtsc()); }
#else
inline int64_t ticks() { return now_ns(); }
#endif

inline double ns_per_tick() {
  static const double unit = [] {
    const int64_t from = now_ns(), from_ticks = ticks();
    while (now_ns() - from < 50000000) continue;
    return static_cast<double>(now_ns() - from) / static_cast<double>(ticks() - from_ticks);
  }();
  return unit;
}

// Ticks of single calls.
class Samples {
 public:
  void add(int64_t ticks) { ticks_.push_back(ticks); }
  size_t size() const { return ticks_.size(); }
  int64_t quantile_ticks(double q) {
    if (ticks_.empty()) return 0;
    const double place = q * static_cast<double>(ticks_.size());
    const size_t i = std::min(ticks_.size() - 1, static_cast<size_t>(place));
    std::nth_element(ticks_.begin(), ticks_.begin() + static_cast<long>(i), ticks_.end());
    return ticks_[i];
  }
  // A quantile in nanoseconds; NaN without samples. `cost` is what a measurement takes, in ticks.
  double quantile(double q, int64_t cost = 0) {
    if (ticks_.empty()) return std::nan("");
    return ns_per_tick() * static_cast<double>(std::max<int64_t>(quantile_ticks(q) - cost, 0));
  }
  // The mean of the fastest 99 %. The operating system causes most of the others.
  double mean(int64_t cost = 0) {
    if (ticks_.empty()) return std::nan("");
    const int64_t most = quantile_ticks(0.99);
    double sum = 0;
    size_t count = 0;
    for (int64_t each : ticks_) {
      if (each > most) continue;
      sum += static_cast<double>(std::max<int64_t>(each - cost, 0));
      ++count;
    }
    return ns_per_tick() * sum / static_cast<double>(count);
  }

 private:
  std::vector<int64_t> ticks_;
};

// Counts of a thread's work, which others read while it runs.
struct alignas(128) Counter {
  std::atomic<uint64_t> pairs{0};
  std::atomic<int64_t> live{0};  // bytes
};

// Only the counter's own thread writes, so no locked instruction is needed.
template <typename Value>
void add(std::atomic<Value>& to, Value more) {
  to.store(to.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

inline uint64_t sum_of_pairs(const std::vector<Counter>& counters) {
  uint64_t pairs = 0;
  for (const Counter& each : counters) pairs += each.pairs.load(std::memory_order_relaxed);
  return pairs;
}

// Arguments of the form `--name value`, all of which have defaults.
class Arguments {
 public:
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  // Throws std::invalid_argument, which names the argument that is unknown or lacks its value.
  Arguments(int argc, char** argv, Pairs defaults) : values_(std::move(defaults)) {
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      if (name.rfind("--", 0) != 0 || i + 1 == argc) {
        throw std::invalid_argument("expected --name value, not " + name);
      }
      find(name.substr(2)) = argv[i + 1];
    }
  }
  const std::string& text(const std::string& name) { return find(name); }
  double number(const std::string& name) {
    const std::string& given = find(name);
    char* end = nullptr;
    const double value = std::strtod(given.c_str(), &end);
    if (given.empty() || *end != '\0' || !std::isfinite(value) || value <= 0) {
      throw std::invalid_argument("--" + name + ": a number above 0, not " + given);
    }
    return value;
  }
  int count(const std::string& name) { return std::max(1, static_cast<int>(number(name))); }

 private:
  std::string& find(const std::string& name) {
    for (auto& [key, value] : values_) {
      if (key == name) return value;
    }
    throw std::invalid_argument("unknown option --" + name);
  }
  Pairs values_;
};

// The figures, by case and subject in the order they came in.
class Report {
 public:
  explicit Report(std::string pattern) : pattern_(std::move(pattern)) {}
  // Adds one round's value of one metric. A value that is not finite counts as none.
  void add(const std::string& label, const std::string& subject, const std::string& metric,
           double value) {
    find(find(rows_, label + '\n' + subject), metric).push_back(value);
  }
  void print() const {
    for (const auto& [key, metrics] : rows_) {
      const size_t cut = key.find('\n');
      std::string line = "{\"pattern\": \"" + pattern_ + "\", \"case\": \"" + key.substr(0, cut) +
                         "\", \"subject\": \"" + key.substr(cut + 1) + "\", \"rounds\": {";
      for (const auto& [metric, values] : metrics) {
        if (line.back() != '{') line += ", ";
        line += "\"" + metric + "\": [";
        for (double value : values) {
          if (line.back() != '[') line += ", ";
          line += number(value);
        }
        line += "]";
      }
      std::puts((line + "}}").c_str());
    }
  }

 private:
  template <typename Value>
  static Value& find(std::vector<std::pair<std::string, Value>>& in, const std::string& key) {
    for (auto& [name, value] : in) {
      if (name == key) return value;
    }
    return in.emplace_back(key, Value()).second;
  }
  static std::string number(double value) {
    if (!std::isfinite(value)) return "null";
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    return text;
  }

  using Metrics = std::vector<std::pair<std::string, std::vector<double>>>;
  std::string pattern_;
  std::vector<std::pair<std::string, Metrics>> rows_;
};

// Calls `measure(subject)` for each subject in `rounds` rounds, each of which begins with another.
template <typename Measure>
void alternate(const std::vector<std::string>& subjects, int rounds, Measure measure) {
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < subjects.size(); ++i) {
      measure(subjects[(i + static_cast<size_t>(round)) % subjects.size()]);
    }
  }
}

// Runs a benchmark's body. Returns 1, and prints a line on stderr, if it throws.
template <typename Body>
int run(const char* name, Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

}  // namespace bench
