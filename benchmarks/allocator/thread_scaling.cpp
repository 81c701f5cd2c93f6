// Several threads on one device: how hits scale, and what they cost while another thread's growth
// waits for the driver.
//
//   thread_scaling [--seconds S] [--rounds N] [--threads T]
//
// Each thread has a working set and, if there are enough, a core of its own. `scaling` is the rate
// of T threads over that of one, in the same round. `best_scaling` is the same for the fastest
// windows of a few ms: other programs seldom run in these. In the stalled case one thread makes
// hits while a second one grows by 256 MiB again and again, for at least 10 ms in the driver each
// time.
#include <pthread.h>
#include <sched.h>

#include "subjects.h"
#include "workload.h"

namespace bench {
namespace {

constexpr int kWarmUp = 50000;
constexpr std::chrono::milliseconds kStall{10};
constexpr int kMostGrown = 240;  // blocks of 256 MiB, which leave 20 GiB to the working set

constexpr std::chrono::milliseconds kWindow{3};
constexpr size_t kBest = 50;  // the window that one in so many exceeds

// Lets the calling thread run on the core of this number alone, counted among those it may use.
// Beside other programs the kernel may leave several threads on one core for long.
void keep_to_core(int number) {
  cpu_set_t may, one;
  if (sched_getaffinity(0, sizeof may, &may) != 0) return;
  int left = number % CPU_COUNT(&may), core = 0;
  while (!CPU_ISSET(core, &may) || left-- > 0) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

// Pairs of free and allocate per second, by all threads together.
struct Rate {
  double mean = 0, best = 0;
};

Rate rate(const Mix& mix, Subject& subject, int threads, double seconds) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false}, stop{false};
  std::vector<Counter> counters(static_cast<size_t>(threads));
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) {
    pool.emplace_back([&, i] {
      keep_to_core(i);
      Workload workload(mix, static_cast<unsigned>(i + 1), subject);
      workload.operations(kWarmUp);
      ++ready;
      while (!go.load()) std::this_thread::yield();
      while (!stop.load(std::memory_order_relaxed)) {
        workload.operations(64);
        add(counters[static_cast<size_t>(i)].pairs, uint64_t{64});
      }
    });
  }
  while (ready.load() != threads) std::this_thread::yield();
  const int64_t begin = now_ns();
  go = true;
  const int64_t end = begin + static_cast<int64_t>(seconds * 1e9);
  std::vector<double> windows;
  uint64_t pairs = 0;
  int64_t now = begin;
  do {
    std::this_thread::sleep_for(kWindow);
    const int64_t then = now;
    const uint64_t before = pairs;
    pairs = sum_of_pairs(counters);
    now = now_ns();
    windows.push_back(static_cast<double>(pairs - before) / static_cast<double>(now - then) * 1e9);
  } while (pairs == 0 || now < end);
  stop = true;
  for (std::thread& each : pool) each.join();
  const auto best = windows.end() - static_cast<long>(windows.size() / kBest + 1);
  std::nth_element(windows.begin(), best, windows.end());
  return {static_cast<double>(pairs) / static_cast<double>(now - begin) * 1e9, *best};
}

void scale(const Mix& mix, const std::string& name, int threads, double seconds, Report& report) {
  const std::unique_ptr<Subject> subject = make_subject(name);
  const Rate one = rate(mix, *subject, 1, seconds);
  const Rate many = rate(mix, *subject, threads, seconds);
  report.add(mix.name, name, "one_thread_per_s", one.mean);
  report.add(mix.name, name, "threads_per_s", many.mean);
  report.add(mix.name, name, "scaling", many.mean / one.mean);
  report.add(mix.name, name, "best_scaling", many.best / one.best);
}

void stall(const Mix& mix, const std::string& name, double seconds, int64_t cost, Report& report) {
  const std::unique_ptr<Subject> subject = make_subject(name);
  Workload workload(mix, 3, *subject, /*spare=*/false);  // the other thread would take it
  workload.operations(4 * kWarmUp);
  std::atomic<bool> stop{false};
  std::exception_ptr failure;
  // Each block is larger than any hole of the working set, so each must grow. The measurement ends
  // with the room for them: where a lock is not fair, one hit may wait for that long.
  std::thread other([&] {
    std::vector<void*> held;
    try {
      for (int grown = 0; grown < kMostGrown && !stop.load(); ++grown) {
        held.push_back(must(subject->allocate_stalled(256 * kMiB, kStall), name));
      }
    } catch (...) {
      failure = std::current_exception();
    }
    stop = true;
    for (void* block : held) subject->release(block);
  });
  Samples allocations, frees;
  const int64_t end = now_ns() + static_cast<int64_t>(seconds * 1e9);
  while (now_ns() < end && !stop.load()) workload.timed(allocations, frees);
  stop = true;
  simcuda_configure("call_delay_us", "cuMemMap=0");  // ends the growth that is under way
  other.join();
  if (failure) std::rethrow_exception(failure);
  const std::string label = std::string("growth stalled, ") + mix.name;
  report.add(label, name, "alloc_p99_ns", allocations.quantile(0.99, cost));
  report.add(label, name, "free_p99_ns", frees.quantile(0.99, cost));
  report.add(label, name, "worst_us",
             std::max(allocations.quantile(1, cost), frees.quantile(1, cost)) * 1e-3);
}

void body(int argc, char** argv) {
  const unsigned cores = std::clamp(std::thread::hardware_concurrency(), 2u, 8u);
  Arguments arguments(argc, argv,
                      {{"seconds", "0.5"}, {"rounds", "5"}, {"threads", std::to_string(cores)}});
  const int rounds = arguments.count("rounds"), threads = arguments.count("threads");
  const double seconds = arguments.number("seconds") / rounds;
  const std::vector<std::string> stalled = {kGlake, "native"};
  const std::vector<std::string> subjects = {kGlake, "native", kGlibc};
  const int64_t cost = timing_cost();
  Report report("thread_scaling");
  for (const Mix& mix : kMixes) {
    alternate(subjects, rounds,
              [&](const std::string& name) { scale(mix, name, threads, seconds / 2, report); });
  }
  for (const Mix& mix : {kMixes[0], kMixes[1]}) {
    alternate(stalled, rounds,
              [&](const std::string& name) { stall(mix, name, seconds, cost, report); });
  }
  report.print();
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run("thread_scaling", [&] { bench::body(argc, argv); });
}
