// Scenarios of private pools, which are restored and emptied while each driver call fails in turn.
#pragma once

#include <vector>

#include "fault_scenario.h"

namespace test::faults {

constexpr glake_pool kPool{1, 0}, kOther{0, 9};

inline std::vector<Scenario> pooling() {
  auto restored = [](Play& p) {
    p.retain(kPool);
    void* a = p.get_from(kPool, 9 * kMiB, 1);
    void* b = p.get_from(kPool, 900 * kKiB, 2);
    p.get_from(kPool, 3 * kMiB, 1);
    if (a == nullptr) return;
    glake_checkpoint* then = p.checkpoint(kPool);
    p.drop(a);
    p.drop(b);
    p.get_from(kPool, 5 * kMiB, 2);
    p.restore(then);
  };
  return {
      {"pools",
       {},
       {{"limit", "32MiB"}},
       1,
       0,
       open,
       [](Play& p) {
         p.retain(kPool);
         p.drop(p.get_from(kPool, 700 * kKiB));
         void* a = p.get_from(kPool, 5 * kMiB);
         p.get_from(kPool, 3 * kMiB);
         p.drop(a);
         p.get_from(kPool, 9 * kMiB);
         p.empty_pool(kPool);
         p.release(kPool);
         p.empty_cache();
       }},
      {"pools at the limit",
       {},
       {{"limit", "32MiB"}},
       1,
       1,
       open,
       [](Play& p) {
         p.retain(kPool);
         std::vector<void*> blocks = checkered(p, 6, 4 * kMiB, 1);
         p.drop(p.get(11 * kMiB, 1));
         p.drop(p.get_from(kPool, 13 * kMiB, 1));
         p.release(kPool);
         p.drop(p.get_from(kOther, 15 * kMiB));
         p.drop(p.get(16 * kMiB, 1));
       }},
      {"a pool in a capture",
       {},
       {{"limit", "32MiB"}},
       1,
       3,
       open,
       [](Play& p) {
         p.retain(kPool);
         p.drop(p.get(9 * kMiB, 2));
         p.begin_capture(1);
         std::vector<void*> blocks;
         for (int i = 0; i < 5; ++i) blocks.push_back(p.get_from(kPool, 4 * kMiB, 1));
         p.record(blocks[1], 3);
         for (int i : {1, 2, 4}) p.drop(blocks[static_cast<size_t>(i)]);
         p.drop(p.get_from(kPool, 7 * kMiB, 1));
         p.drop(p.get(5 * kMiB, 3));
         p.empty_cache();
         p.end_capture();
         p.get_from(kPool, 12 * kMiB, 1);
         p.release(kPool);
         p.empty_cache();
       }},
      {"a pool restored", {}, {{"limit", "64MiB"}}, 1, 2, open, restored},
      {"a pool restored, work never done",
       {{"complete_after", "-1"}},
       {{"limit", "64MiB"}},
       1,
       2,
       open,
       restored},
      {"shutdown with pools",
       {},
       {{"limit", "32MiB"}},
       1,
       1,
       [](Play& p) {
         p.retain(kPool);
         p.drop(p.get_from(kPool, 7 * kMiB, 1));
         p.drop(p.get_from(kOther, 3 * kMiB));
         p.drop(p.get(5 * kMiB, 1));
       },
       [](Play& p) { p.shutdown(); }},
  };
}

}  // namespace test::faults
