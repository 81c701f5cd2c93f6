// Scenarios of regions that pause and resume while each driver call fails in turn. Once nothing
// fails any more, the bytes are the same as before, whatever was refused.
#pragma once

#include <vector>

#include "fault_scenario.h"

namespace test::faults {

inline glake_pool region() {
  glake_pool pool{};
  OK(glake_region_pool("weights", &pool));
  return pool;
}

// Blocks of both arenas, at home and in a view, each filled with different words.
inline std::vector<void*>& stamped() {
  static std::vector<void*> blocks;
  return blocks;
}
constexpr size_t kStamped = 11 * kMiB;  // of the largest

inline size_t stamped_bytes(size_t i) { return i == 0 ? kStamped : i == 1 ? 5 * kMiB : 900 * kKiB; }

inline void stamp_region(Play& p) {
  const CurrentContext current;
  std::vector<void*> parts;
  for (int i = 0; i < 5; ++i) parts.push_back(p.get_from(region(), 4 * kMiB));
  for (size_t i : {0U, 2U, 4U}) p.drop(parts[i]);
  stamped() = {p.get_from(region(), kStamped), p.get_from(region(), 5 * kMiB),
               p.get_from(region(), 900 * kKiB)};
  for (size_t i = 0; i < stamped().size(); ++i) {
    CU(cuMemsetD32(reinterpret_cast<CUdeviceptr>(stamped()[i]), static_cast<unsigned>(i + 1),
                   stamped_bytes(i) / 4));
  }
}

// Called once nothing fails any more. The region is in use or can be resumed, and holds what it
// held.
inline void check_region(Play& p) {
  p.disarm();
  const int code = glake_region_resume(0, region(), 1);
  CHECK(code == GLAKE_OK || code == GLAKE_REGION_REFUSED);  // it is not paused
  p.verify();
  const CurrentContext current;
  for (size_t i = 0; i < stamped().size(); ++i) {
    std::vector<uint32_t> words(stamped_bytes(i) / 4);
    CU(cuMemcpyDtoH(words.data(), reinterpret_cast<CUdeviceptr>(stamped()[i]), words.size() * 4));
    for (uint32_t word : words) CHECK_TEXT(word == i + 1, "a region's bytes have changed");
  }
}

inline std::vector<Scenario> pausing() {
  auto there_and_back = [](int to) {
    return [to](Play& p) {
      if (p.pause(region(), to)) {
        p.empty_cache();
        p.resume(region());
      }
      check_region(p);
    };
  };
  const Options small{{"limit", "48MiB"}};
  return {
      {"a region paused to the host",
       {},
       small,
       1,
       1,
       stamp_region,
       there_and_back(GLAKE_REGION_HOST)},
      {"a region paused to disk", {}, small, 1, 1, stamp_region, there_and_back(GLAKE_REGION_DISK)},
      {"a region resumed where others have grown",
       {},
       small,
       1,
       2,
       [](Play& p) {
         stamp_region(p);
         CHECK(p.pause(region(), GLAKE_REGION_HOST));
         p.drop(p.get(30 * kMiB, 1));
         p.drop(p.get_from({1, 0}, 7 * kMiB, 2));
       },
       [](Play& p) {
         p.resume(region(), 0);
         check_region(p);
       }},
      {"a region freed while paused",
       {},
       small,
       1,
       1,
       stamp_region,
       [](Play& p) {
         const bool paused = p.pause(region(), GLAKE_REGION_DISCARD);
         p.drop(stamped()[0]);
         if (paused) p.resume(region());
         p.drop(stamped()[2]);
         p.empty_cache();
       }},
      {"shutdown with a paused region",
       {},
       small,
       1,
       1,
       [](Play& p) {
         stamp_region(p);
         CHECK(p.pause(region(), GLAKE_REGION_HOST));
         while (!p.held().empty()) p.drop(p.held().back().ptr);
       },
       [](Play& p) { p.shutdown(); }},
  };
}

}  // namespace test::faults
