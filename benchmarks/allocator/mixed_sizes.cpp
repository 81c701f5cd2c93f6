// Blocks of all sizes and lifetimes. Threads free blocks that other threads took.
//
//   mixed_sizes [--seconds S] [--rounds N] [--threads T] [--most MIB]
//
// Two patterns, after well-known tests of host allocators, at a GPU's sizes (log-uniform from 512
// bytes to MIB):
//   passing  (as larson): each thread replaces random ones of its 128 blocks. Now and then it swaps
//            all of them for another thread's
//   bursts   (as mimalloc's mstress): bursts of allocations with random frees between; a few blocks
//            outlive many bursts, some change hands; then the burst is freed in random order
// `pairs_per_s` counts pairs of an allocation and its free, all threads together. `held_per_live`
// is the physical memory at the end over the most bytes that were live. `driver_us_per_1k` is the
// modelled time of the driver calls of a thousand pairs after the warm-up, which is the cost of
// drift.
#include <array>
#include <cmath>
#include <random>

#include "subjects.h"

namespace bench {
namespace {

constexpr size_t kLeast = 512;
constexpr int kPassed = 128;  // blocks of a thread in `passing`
constexpr int kBurst = 64, kRetained = 48, kShared = 64;
constexpr uint64_t kFewest = 1000;  // each thread makes at least so many pairs

struct Held {
  void* block = nullptr;
  size_t bytes = 0;
};

// Slots through which threads exchange blocks.
template <typename Value, size_t kSlots>
class Exchange {
 public:
  Value swap(size_t slot, Value value) {
    const std::lock_guard<std::mutex> held(locks_[slot % kSlots]);
    std::swap(values_[slot % kSlots], value);
    return value;
  }

 private:
  std::array<std::mutex, kSlots> locks_;
  std::array<Value, kSlots> values_{};
};

// One thread's view of the device.
class Actor {
 public:
  Actor(Subject& subject, Counter& counter, size_t most, unsigned seed)
      : random(seed),
        subject_(subject),
        counter_(counter),
        exponent_(std::log2(double{kLeast}), std::log2(static_cast<double>(most))) {}
  Held allocate() {
    const auto bytes = static_cast<size_t>(std::exp2(exponent_(random)));
    return {must(subject_.allocate(bytes), kGlake), count(bytes)};
  }
  void release(Held& held) {
    if (held.block == nullptr) return;
    subject_.release(held.block);
    add(counter_.pairs, uint64_t{1});
    add(counter_.live, -static_cast<int64_t>(held.bytes));
    held = {};
  }
  size_t below(size_t bound) { return random() % bound; }

  std::minstd_rand random;

 private:
  size_t count(size_t bytes) {
    add(counter_.live, static_cast<int64_t>(bytes));
    return bytes;
  }
  Subject& subject_;
  Counter& counter_;
  std::uniform_real_distribution<double> exponent_;
};

class Passing {
 public:
  static constexpr const char* kName = "passing (larson)";
  void turn(Actor& actor, std::vector<Held>& mine) {
    mine.resize(kPassed);
    for (int i = 0; i < 4 * kPassed; ++i) {
      Held& held = mine[actor.below(kPassed)];
      actor.release(held);
      held = actor.allocate();
    }
    mine = belt_.swap(0, std::move(mine));
  }
  void end(Actor& actor) { release_all(actor, belt_.swap(0, {})); }
  static void release_all(Actor& actor, std::vector<Held> all) {
    for (Held& held : all) actor.release(held);
  }

 private:
  Exchange<std::vector<Held>, 1> belt_;
};

class Bursts {
 public:
  static constexpr const char* kName = "bursts (mstress)";
  // The first kRetained of `mine` outlive the burst.
  void turn(Actor& actor, std::vector<Held>& mine) {
    mine.resize(kRetained);
    for (int i = 0; i < kBurst; ++i) {
      mine.push_back(actor.allocate());
      const size_t dice = actor.below(16);
      Held& any = mine[kRetained + actor.below(mine.size() - kRetained)];
      if (dice < 4) actor.release(any);
      if (dice == 4) std::swap(any, mine[actor.below(kRetained)]);
      if (dice == 5) any = shared_.swap(actor.below(kShared), any);
    }
    std::shuffle(mine.begin() + kRetained, mine.end(), actor.random);
    while (mine.size() > kRetained) {
      actor.release(mine.back());
      mine.pop_back();
    }
  }
  void end(Actor& actor) {
    for (size_t i = 0; i < kShared; ++i) {
      Held held = shared_.swap(i, {});
      actor.release(held);
    }
  }

 private:
  Exchange<Held, kShared> shared_;
};

int64_t sum_of_live(const std::vector<Counter>& counters) {
  int64_t live = 0;
  for (const Counter& each : counters) live += each.live.load(std::memory_order_relaxed);
  return live;
}

template <typename Pattern>
void measure(const std::string& name, int threads, size_t most, double seconds, Report& report) {
  const std::unique_ptr<Subject> subject = make_subject(name);
  Pattern pattern;
  std::vector<Counter> counters(static_cast<size_t>(threads));
  std::atomic<bool> stop{false};
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) {
    pool.emplace_back([&, i] {
      Actor actor(*subject, counters[static_cast<size_t>(i)], most, static_cast<unsigned>(i + 1));
      std::vector<Held> mine;
      while (!stop.load(std::memory_order_relaxed)) pattern.turn(actor, mine);
      Passing::release_all(actor, std::move(mine));
    });
  }
  int64_t peak_live = 0;
  const auto watch_for = [&](double time) {
    const uint64_t enough = sum_of_pairs(counters) + static_cast<uint64_t>(threads) * kFewest;
    const int64_t end = now_ns() + static_cast<int64_t>(time * 1e9);
    do {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      peak_live = std::max(peak_live, sum_of_live(counters));
    } while (now_ns() < end || sum_of_pairs(counters) < enough);
  };
  watch_for(seconds / 2);  // the warm-up
  const DriverCalls calls = subject->calls();
  const uint64_t pairs = sum_of_pairs(counters);
  const int64_t begin = now_ns();
  watch_for(seconds);
  const double done = static_cast<double>(sum_of_pairs(counters) - pairs);
  const double taken = static_cast<double>(now_ns() - begin) * 1e-9;
  const Modelled us = modelled_us(subject->calls() - calls);
  const auto physical = static_cast<double>(subject->physical_bytes());
  stop = true;
  for (std::thread& each : pool) each.join();
  Actor actor(*subject, counters[0], most, 1);
  pattern.end(actor);
  const char* label = Pattern::kName;
  const bool known = physical > 0 && peak_live > 0;
  const double thousands = std::max(done, 1.0) * 1e-3;
  report.add(label, name, "pairs_per_s", done / taken);
  report.add(label, name, "held_per_live",
             known ? physical / static_cast<double>(peak_live) : std::nan(""));
  report.add(label, name, "driver_us_per_1k", known ? us.published / thousands : std::nan(""));
  report.add(label, name, "driver_us_per_1k_a100",
             known ? us.a100_kvcached / thousands : std::nan(""));
}

void body(int argc, char** argv) {
  const unsigned cores = std::clamp(std::thread::hardware_concurrency(), 2u, 8u);
  Arguments arguments(
      argc, argv,
      {{"seconds", "1"}, {"rounds", "5"}, {"threads", std::to_string(cores)}, {"most", "256"}});
  const size_t most = static_cast<size_t>(arguments.count("most")) * kMiB;
  const int rounds = arguments.count("rounds"), threads = arguments.count("threads");
  const double seconds = arguments.number("seconds") / rounds;
  std::vector<std::string> subjects = models();
  subjects.insert(subjects.begin(), {kGlake, kCompact});
  subjects.push_back(kGlibc);
  Report report("mixed_sizes");
  alternate(subjects, rounds, [&](const std::string& name) {
    measure<Passing>(name, threads, most, seconds, report);
    measure<Bursts>(name, threads, most, seconds, report);
  });
  report.print();
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run("mixed_sizes", [&] { bench::body(argc, argv); });
}
