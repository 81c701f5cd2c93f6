// Scenarios of the process and its threads: peers, traces, limits, threads that end, and shutdown
// in every state.
#pragma once

#include <thread>

#include "fault_scenario.h"

namespace test::faults {

// Sets up views, holes and a busy arena on each of two devices.
inline void both_devices(Play& p) {
  for (int device : {0, 1}) {
    std::vector<void*> blocks;
    for (int i = 0; i < 6; ++i) blocks.push_back(p.get(4 * kMiB, 0, device));
    for (size_t i = 0; i < blocks.size(); i += 2) p.drop(blocks[i]);
    p.drop(p.get(11 * kMiB, 0, device));
  }
}

// Sets up memory that waits for recorded streams, and idle views.
inline void held_back(Play& p) {
  checkered(p, 6, 4 * kMiB, 1);
  void* ptr = p.get(10 * kMiB, 1);
  for (int on : {0, 2, 3, 4, 5}) p.record(ptr, on);
  p.touch(ptr, 10 * kMiB, 5);
  p.drop(ptr);
}

inline void drop_all(Play& p) {
  while (!p.held().empty()) p.drop(p.held().back().ptr);
}

inline std::vector<Scenario> lifecycle() {
  const Options two{{"devices", "2"}};
  return {
      {"peers of everything mapped",
       two,
       {{"limit", "32MiB"}},
       2,
       0,
       both_devices,
       [](Play& p) {
         p.peer(0, 1);
         p.peer(1, 0);
         p.empty_cache(0);
         p.drop(p.get(9 * kMiB, 0, 0));
         p.drop(p.get(9 * kMiB, 0, 1));
       }},
      {"all peers, stitched",
       two,
       {{"limit", "24MiB"}, {"peers", "all"}},
       2,
       0,
       nothing,
       [](Play& p) { both_devices(p); }},
      {"traced",
       {},
       {{"limit", "24MiB"}, {"trace", "/dev/null"}},
       1,
       2,
       open,
       [](Play& p) {
         void* ptr = p.get(5 * kMiB, 1);
         p.record(ptr, 2);
         p.drop(ptr);
         p.drop(p.get(22 * kMiB, 2));
         CHECK(glake_mark_step(0) == GLAKE_OK);
         CHECK(glake_trace(nullptr) == GLAKE_OK);
         p.get(3 * kMiB, 2);
       }},
      {"a device fuller than the limit says",
       {{"memory", "24MiB"}},
       {},
       1,
       0,
       [](Play& p) { checkered(p, 5, 4 * kMiB); },
       [](Play& p) {
         p.drop(p.get(11 * kMiB));
         p.get(600 * kKiB);
         p.get(5 * kMiB);
       }},
      {"a fraction of the device",
       {{"memory", "64MiB"}},
       {{"limit", "0.45"}},
       1,
       0,
       nothing,
       [](Play& p) {
         checkered(p, 6, 4 * kMiB);
         p.drop(p.get(13 * kMiB));
       }},
      {"shutdown of an unused device", {}, {}, 1, 0, open, [](Play& p) { p.shutdown(); }},
      {"shutdown, traced", {}, {{"trace", "/dev/null"}}, 1, 0, open, [](Play& p) { p.shutdown(); }},
      {"shutdown with memory held back",
       {},
       {{"limit", "32MiB"}},
       1,
       5,
       [](Play& p) {
         held_back(p);
         drop_all(p);
       },
       [](Play& p) { p.shutdown(); }},
      {"shutdown of peers",
       two,
       {{"limit", "32MiB"}, {"peers", "all"}},
       2,
       0,
       [](Play& p) {
         both_devices(p);
         drop_all(p);
       },
       [](Play& p) { p.shutdown(); }},
      {"shutdown refused for live blocks",
       {},
       {{"limit", "32MiB"}},
       1,
       5,
       held_back,
       [](Play& p) {
         CHECK(glake_shutdown() == GLAKE_INVALID_ARGUMENT);
         p.get(5 * kMiB, 2);
       }},
      {"shutdown and a new start",
       {},
       {{"limit", "32MiB"}},
       1,
       0,
       open,
       [](Play& p) {
         if (!p.shutdown()) return;
         configure({{"driver", "sim"}, {"policy", "compact"}});
         p.drop(p.get(3 * kMiB));
         p.get(1000);
       }},
  };
}

inline std::vector<Scenario> threads() {
  return {
      {"a thread that ends",
       {},
       {{"limit", "24MiB"}},
       1,
       2,
       nothing,
       [](Play& p) {
         std::thread([&] {
           for (int i = 0; i < 6; ++i) p.drop(p.get(2000, i % 3));
           p.drop(p.get(5 * kMiB, 1));
         }).join();
         p.get(18 * kMiB, 2);
       }},
      {"blocks of a thread that ended",
       {},
       {{"limit", "24MiB"}},
       1,
       2,
       open,
       [](Play& p) {
         void* ptr = nullptr;
         std::thread([&] { ptr = p.get(9 * kMiB, 1); }).join();
         p.record(ptr, 2);
         std::thread([&] { p.drop(ptr); }).join();
         p.get(16 * kMiB, 2);
       }},
      {"shutdown by another thread",
       {},
       {{"limit", "24MiB"}},
       1,
       0,
       [](Play& p) { p.drop(p.get(5 * kMiB)); },
       [](Play& p) { std::thread([&] { p.shutdown(); }).join(); }},
  };
}

}  // namespace test::faults
