// Fails the k-th driver call, for every k. Each scenario runs once to count its calls. Then it runs
// again for each call, which fails once, twice in a row (so that undo is refused too) or for good,
// with several codes. See fault_play.h for what must hold.
#include <sys/wait.h>
#include <unistd.h>

#include "fault_lifecycle.h"
#include "fault_pools.h"
#include "fault_regions.h"
#include "fault_scenario.h"
#include "fault_virtual.h"

using test::kGranule;
using test::kKiB;
using test::kMiB;
using test::Options;
using test::Play;

namespace {

using namespace test::faults;

std::vector<Scenario> growing() {
  return {
      {"first use", {}, {}, 1, 0, nothing, [](Play& p) { p.drop(p.get(1000)); }},
      {"first use of two devices",
       {{"devices", "2"}},
       {{"peers", "all"}},
       2,
       0,
       nothing,
       [](Play& p) {
         p.get(3 * kMiB, 0, 0);
         p.get(3 * kMiB, 0, 1);
       }},
      {"small growth",
       {},
       {{"limit", "32MiB"}},
       1,
       0,
       open,
       [](Play& p) {
         for (int i = 0; i < 7; ++i) p.get(900 * kKiB);
       }},
      {"large growth",
       {},
       {{"limit", "32MiB"}},
       1,
       0,
       open,
       [](Play& p) {
         void* first = p.get(3 * kMiB);
         p.get(11 * kMiB);
         p.drop(first);
         p.get(4 * kMiB);
       }},
      {"stitch, then growth in holes",
       {},
       {{"limit", "18MiB"}},
       1,
       0,
       [](Play& p) {
         std::vector<void*> parts;
         for (int i = 0; i < 6; ++i) parts.push_back(p.get(i % 2 == 0 ? 2 * kGranule : kGranule));
         p.drop(parts[0]);
         p.drop(parts[2]);
         p.empty_cache();
         p.drop(parts[4]);
       },
       [](Play& p) {
         p.drop(p.get(12 * kMiB));
         p.get(9 * kMiB);
       }},
  };
}

std::vector<Scenario> stitching() {
  return {
      {"stitch at the limit",
       {},
       {{"limit", "32MiB"}},
       1,
       0,
       [](Play& p) { checkered(p, 8, 4 * kMiB); },
       [](Play& p) {
         p.drop(p.get(14 * kMiB));
         p.drop(p.get(14 * kMiB));
         p.drop(p.get(9 * kMiB));
       }},
      {"stitch and grow",
       {},
       {{"limit", "32MiB"}},
       1,
       0,
       [](Play& p) { checkered(p, 6, 4 * kMiB); },
       [](Play& p) { p.get(19 * kMiB); }},
      {"compact stitches first",
       {},
       {{"limit", "64MiB"}, {"policy", "compact"}},
       1,
       0,
       [](Play& p) { checkered(p, 6, 4 * kMiB); },
       [](Play& p) {
         p.get(10 * kMiB);
         p.get(7 * kMiB);
         p.get(600 * kKiB);
       }},
      {"edges",
       {},
       {{"limit", "30MiB"}},
       1,
       0,
       [](Play& p) { checkered(p, 10, 3 * kMiB); },
       [](Play& p) {
         p.drop(p.get(10 * kMiB + 900 * kKiB));
         p.get(10 * kMiB + 900 * kKiB);
       }},
      {"small in the large arena",
       {},
       {{"limit", "8MiB"}},
       1,
       0,
       [](Play& p) { checkered(p, 4, 2 * kMiB); },
       [](Play& p) {
         p.get(1000);
         p.get(900 * kKiB);
         p.get(3 * kMiB);
       }},
      {"eviction of views",
       {},
       {{"limit", "32MiB"}, {"view_budget", "1"}},
       1,
       1,
       [](Play& p) { checkered(p, 8, 4 * kMiB, 1); },
       [](Play& p) {
         for (size_t mib : {13, 15, 11, 9, 16}) {
           void* ptr = p.get(mib * kMiB, 1);
           p.touch(ptr, mib * kMiB, 1);
           p.drop(ptr);
         }
       }},
      {"empty cache",
       {},
       {{"limit", "32MiB"}},
       1,
       0,
       [](Play& p) {
         checkered(p, 8, 4 * kMiB);
         p.drop(p.get(900 * kKiB));
         p.drop(p.get(15 * kMiB));
       },
       [](Play& p) {
         p.empty_cache();
         p.get(12 * kMiB);
         p.empty_cache();
       }},
  };
}

std::vector<Scenario> cutting() {
  return {
      {"a view is cut",
       {{"complete_after", "0"}},
       {{"limit", "144MiB"}},
       1,
       2,
       [](Play& p) {
         std::vector<void*> blocks = checkered(p, 8, 16 * kMiB, 1);
         p.drop(p.get(64 * kMiB, 1));
         p.drop(p.get(512, 2));
         p.get(16 * kMiB, 1);
         p.drop(blocks[1]);
       },
       [](Play& p) {
         p.drop(p.get(80 * kMiB, 1));
         p.drop(p.get(56 * kMiB, 1));
         p.get(80 * kMiB, 1);
       }},
  };
}

std::vector<Scenario> crossing() {
  const Options never{{"complete_after", "-1"}}, later{};
  auto cross = [](Play& p) {
    std::vector<void*> blocks = checkered(p, 8, 4 * kMiB, 1);
    p.get(12 * kMiB, 2);
    p.drop(blocks[1]);
    p.get(2 * kMiB, 3);
    p.drop(blocks[3]);
    p.drop(p.get(5 * kMiB, 0));
    p.get(700 * kKiB, 3);
  };
  auto recorded = [](Play& p) {
    void* a = p.get(9 * kMiB, 1);
    void* b = p.get(9 * kMiB, 2);
    for (int on : {2, 3}) p.record(a, on);
    for (int on : {0, 1, 3, 4, 5}) p.record(b, on);
    p.touch(a, 9 * kMiB, 3);
    p.drop(a);
    p.drop(b);
    p.get(9 * kMiB, 1);
    p.get(17 * kMiB, 4);
    p.empty_cache();
  };
  return {
      {"cross-stream reuse", later, {{"limit", "32MiB"}}, 1, 3, open, cross},
      {"cross-stream reuse, work never done", never, {{"limit", "32MiB"}}, 1, 3, open, cross},
      {"recorded streams", later, {{"limit", "32MiB"}}, 1, 5, open, recorded},
      {"recorded streams, compact",
       later,
       {{"limit", "32MiB"}, {"policy", "compact"}},
       1,
       5,
       open,
       recorded},
      {"eviction under work",
       later,
       {{"limit", "32MiB"}, {"view_budget", "1"}},
       1,
       2,
       [](Play& p) { checkered(p, 8, 4 * kMiB, 1); },
       [](Play& p) {
         for (size_t mib : {13, 15, 11}) {
           const int on = mib == 15 ? 2 : 1;
           void* ptr = p.get(mib * kMiB, on);
           p.touch(ptr, mib * kMiB, on);
           p.drop(ptr);
         }
       }},
  };
}

std::vector<Scenario> ending() {
  const Options two{{"devices", "2"}};
  return {
      {"peers",
       two,
       {{"limit", "32MiB"}},
       2,
       0,
       [](Play& p) { checkered(p, 6, 4 * kMiB); },
       [](Play& p) {
         p.drop(p.get(10 * kMiB));
         p.peer(0, 1);
         p.get(3 * kMiB);
         p.drop(p.get(8 * kMiB, 0, 1));
         p.peer(1, 0);
       }},
      {"shutdown",
       {},
       {{"limit", "32MiB"}},
       1,
       0,
       [](Play& p) {
         std::vector<void*> blocks = checkered(p, 8, 4 * kMiB);
         p.drop(p.get(14 * kMiB));
         for (size_t i = 1; i < blocks.size(); i += 2) p.drop(blocks[i]);
       },
       [](Play& p) { p.shutdown(); }},
      {"shutdown of two devices and streams",
       two,
       {{"limit", "32MiB"}},
       2,
       3,
       [](Play& p) {
         void* a = p.get(5 * kMiB, 1);
         p.record(a, 2);
         void* b = p.get(24 * kMiB, 2);
         p.drop(a);
         p.drop(b);
         p.drop(p.get(30 * kMiB, 3));
         p.drop(p.get(6 * kMiB, 0, 1));
       },
       [](Play& p) { p.shutdown(); }},
  };
}

int64_t run(const Scenario& s, const test::Fault& fault) {
  test::running() = std::string(s.name) + ", call " + std::to_string(fault.k) + " fails with " +
                    std::to_string(fault.code) + ", times " + std::to_string(fault.times);
  Options simulator{{"phantom", "1"}, {"memory", "256MiB"}};
  if (s.devices == 1) simulator.push_back({"devices", "1"});
  simulator.insert(simulator.end(), s.simulator.begin(), s.simulator.end());
  Play play(simulator, s.glake, s.devices, s.streams);
  s.prepare(play);
  play.arm(fault);
  s.act(play);
  const int64_t calls = play.calls_since_armed();
  play.recover();
  return calls;
}

constexpr int kCodes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_ERROR_INVALID_VALUE};
constexpr int64_t kTimes[] = {1, 2, -1};

// Returns how many calls the scenario makes, and in how many runs a call failed. A call has nine
// faults: three codes, each for three numbers of times. Unless `all` is true three of them are
// tried for each call: every code once, and every number of times once.
std::pair<int64_t, int64_t> sweep(const Scenario& s, bool all) {
  const int64_t n = run(s, {});
  CHECK(n > 0);
  int64_t runs = 0;
  for (int64_t k = 1; k <= n; k += test::kShortened) {
    for (size_t code = 0; code < 3; ++code) {
      for (size_t times = 0; times < 3; ++times) {
        bool turn = times == (code + static_cast<size_t>(k)) % 3;
        if (!all && !turn) continue;
        run(s, {k, kCodes[code], kTimes[times]});
        ++runs;
      }
    }
  }
  return {n, runs};
}

// Makes each run in a process of its own, so that it lists all failures and not the first alone.
void survey(const Scenario& s) {
  int failures = 0;
  for (int64_t k = 1; failures < 50; ++k) {
    for (int code : kCodes) {
      for (int64_t times : kTimes) {
        std::fflush(nullptr);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
          alarm(20);
          std::_Exit(run(s, {k, code, times}) < k ? 2 : 0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 2 && times == 1) return;
        if (status != 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 2)) {
          ++failures;
          std::printf("FAILED %s %lld %d %lld\n", s.name, static_cast<long long>(k), code,
                      static_cast<long long>(times));
        }
      }
    }
  }
}

// All scenarios. For new scenarios, add a function in a header of its own.
std::vector<Scenario> all_scenarios() {
  std::vector<Scenario> all;
  for (const auto& group : {growing(), stitching(), cutting(), crossing(), pooling(), pausing(),
                            virtual_ranges(), ending(), lifecycle(), threads()}) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

// Does what the program's arguments say (see main()).
int sweep_all(int argc, char** argv) {
  int64_t runs = 0, calls = 0;
  for (const Scenario& s : all_scenarios()) {
    if (argc == 2 && std::string(argv[1]) == "--survey") {
      survey(s);
    } else if (argc == 5) {
      if (std::string(argv[1]) == s.name) {
        run(s, {std::atoll(argv[2]), std::atoi(argv[3]), std::atoll(argv[4])});
      }
    } else if (argc != 3 || std::string(argv[2]) == s.name) {
      const auto [n, ran] = sweep(s, argc == 2);
      calls += n;
      runs += ran;
    }
  }
  std::printf("%lld driver calls in the scenarios, %lld runs with a fault\n",
              static_cast<long long>(calls), static_cast<long long>(runs));
  return 0;
}

TEST(every_call_of_every_scenario_refused) { sweep_all(1, nullptr); }

}  // namespace

// Arguments, one of these:
//   --all                 all nine faults of every call
//   --survey              the same, each run in a process, and a list of the failures
//   --only SCENARIO       one scenario
//   SCENARIO K CODE TIMES one run

int main(int argc, char** argv) {
  const test::Choice choice(argc, argv);
  const bool by_hand = argc > 1 && !choice.list && choice.filter.empty();
  return by_hand ? sweep_all(argc, argv) : test::run_cases(argc, argv);
}
