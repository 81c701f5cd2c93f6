// Times the hot path: a steady working set, hits only, one thread, every call by itself.
//
//   hot_path [--seconds S] [--rounds N]      S covers all rounds of a subject and mix of sizes
#include "subjects.h"
#include "workload.h"

namespace bench {
namespace {

constexpr int kWarmUp = 50000;

void measure(const Mix& mix, const std::string& name, double seconds, int64_t cost,
             Report& report) {
  const std::unique_ptr<Subject> subject = make_subject(name);
  Workload workload(mix, 1, *subject);
  workload.operations(kWarmUp);
  const uint64_t calls = subject->calls().of_memory();
  Samples allocations, frees;
  const int64_t end = now_ns() + static_cast<int64_t>(seconds * 1e9);
  while (now_ns() < end) {
    for (int i = 0; i < 16; ++i) workload.timed(allocations, frees);
  }
  report.add(mix.name, name, "alloc_p50_ns", allocations.quantile(0.5, cost));
  report.add(mix.name, name, "alloc_p99_ns", allocations.quantile(0.99, cost));
  report.add(mix.name, name, "free_p50_ns", frees.quantile(0.5, cost));
  report.add(mix.name, name, "free_p99_ns", frees.quantile(0.99, cost));
  const double pair = allocations.mean(cost) + frees.mean(cost);
  report.add(mix.name, name, "pair_mean_ns", pair);
  // Requests that miss make driver calls. There are none once the working set is warm.
  report.add(mix.name, name, "driver_calls",
             static_cast<double>(subject->calls().of_memory() - calls));
}

void body(int argc, char** argv) {
  Arguments arguments(argc, argv, {{"seconds", "0.5"}, {"rounds", "5"}});
  const int rounds = arguments.count("rounds");
  const double seconds = arguments.number("seconds") / rounds;
  std::vector<std::string> subjects = models();
  subjects.insert(subjects.begin(), kGlake);
  subjects.push_back(kGlibc);
  const int64_t cost = timing_cost();
  Report report("hot_path");
  for (const Mix& mix : kMixes) {
    alternate(subjects, rounds,
              [&](const std::string& name) { measure(mix, name, seconds, cost, report); });
  }
  report.print();
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return bench::run("hot_path", [&] { bench::body(argc, argv); });
}
