// Snapshots of random programs. Every physical byte is in one segment, every byte of a segment is
// in one block, and sums equal the statistics, whatever is stitched, cached or held back.
#include <algorithm>
#include <memory>

#include "harness.h"

using test::kKiB;
using test::kMiB;

namespace {

struct Shot {
  struct Segment {
    glake_segment_info info;
    std::vector<glake_block_record> blocks;
  };
  std::vector<Segment> segments;
};

Shot snapshot() {
  Shot shot;
  OK(glake_visit_memory(
      0, &shot,
      [](void* self, const glake_segment_info* info) {
        static_cast<Shot*>(self)->segments.push_back({*info, {}});
      },
      [](void* self, const glake_block_record* block) {
        static_cast<Shot*>(self)->segments.back().blocks.push_back(*block);
      }));
  return shot;
}

struct Live {
  void* ptr;
  size_t bytes;
  const char* tag;
};

struct Sums {
  int64_t reserved = 0, active = 0, waiting = 0, stitched = 0;
};

Sums check(const Shot& shot, const std::vector<Live>& live) {
  Sums sums;
  std::map<uint64_t, uint64_t> ranges;
  std::map<uint64_t, glake_block_record> active;
  for (const Shot::Segment& s : shot.segments) {
    sums.reserved += static_cast<int64_t>(s.info.bytes);
    CHECK(ranges.emplace(s.info.address, s.info.bytes).second && s.info.bytes > 0);
    uint64_t at = s.info.address;
    bool idle = false;
    for (const glake_block_record& b : s.blocks) {
      CHECK_TEXT(b.address == at && b.bytes > 0, "a segment's blocks tile it");
      at += b.bytes;
      bool anonymous = b.state == GLAKE_INACTIVE;
      CHECK(!anonymous || (b.requested == 0 && b.tag == nullptr && !idle));  // neighbours merge
      idle = anonymous;
      if (b.state == GLAKE_AWAITING_FREE) sums.waiting += static_cast<int64_t>(b.bytes);
      if (b.state != GLAKE_ACTIVE) continue;
      sums.active += static_cast<int64_t>(b.bytes);
      active.emplace(b.address, b);
    }
    CHECK(at == s.info.address + s.info.bytes);
  }
  uint64_t end = 0;
  for (auto [address, bytes] : ranges) {
    CHECK(address >= end);
    end = address + bytes;
  }
  CHECK(active.size() == live.size());
  for (const Live& l : live) {
    auto found = active.find(reinterpret_cast<uint64_t>(l.ptr));
    CHECK(found != active.end() && found->second.requested == l.bytes);
    CHECK((found->second.tag == nullptr) == (l.tag == nullptr));
    if (l.tag != nullptr) CHECK(std::string(found->second.tag) == l.tag);
  }
  CHECK(sums.reserved == test::stat("reserved_bytes.all.current"));
  CHECK(sums.active == test::stat("allocated_bytes.all.current"));
  for (const Shot::Segment& s : shot.segments) {
    if (s.info.address % (2 * kMiB) == 0 && s.blocks.size() == 1 && s.info.large == 1) {
      ++sums.stitched;
    }
  }
  return sums;
}

void random_programs(const char* policy, uint64_t seed) {
  test::running() = std::string(policy) + ", seed " + std::to_string(seed);
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", "64MiB"}, {"policy", policy}});
  auto context = std::make_unique<test::CurrentContext>();
  CUstream streams[10] = {};
  for (int i = 1; i < 10; ++i) CU(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  test::Dice dice(seed);
  std::vector<Live> live;
  static const char* const tags[] = {nullptr, "a", "b"};
  int64_t waited = 0, most_segments = 0;
  for (int i = 0; i < (test::kSlowdown == 1 ? 4000 : 1600); ++i) {
    if (live.empty() || dice.chance(53)) {
      size_t bytes = dice.chance(60) ? dice(1, 20 * kKiB) : dice(kMiB / 2, 9 * kMiB);
      const char* tag = tags[dice(0, 2)];
      glake_set_tag(tag);
      void* ptr = glake_malloc(bytes, 0, streams[dice.chance(70) ? 0 : dice(1, 2)]);
      glake_set_tag(nullptr);
      if (ptr != nullptr) live.push_back({ptr, bytes, tag});
    }
    bool full = glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY;
    for (int n = full ? 4 : dice.chance(47) ? 1 : 0; n > 0 && !live.empty(); --n) {
      size_t one = dice(0, live.size() - 1);
      if (dice.chance(4)) {
        for (CUstream s : streams) OK(glake_record_stream(live[one].ptr, s));
      }
      OK(glake_free(live[one].ptr));
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(one));
    }
    if (dice.chance(10)) {
      Shot shot = snapshot();
      waited = std::max(waited, check(shot, live).waiting);
      most_segments = std::max(most_segments, static_cast<int64_t>(shot.segments.size()));
    }
    if (dice(0, 700) == 0) OK(glake_empty_cache(0));
  }
  CHECK(test::stat("glake.stitches") > 0 && waited > 0);
  std::printf("%s: up to %d segments, %d stitches\n", policy, static_cast<int>(most_segments),
              static_cast<int>(test::stat("glake.stitches")));
  for (const Live& l : live) OK(glake_free(l.ptr));
  check(snapshot(), {});
  OK(glake_shutdown());
  for (int i = 1; i < 10; ++i) test::end_stream(streams[i]);
  context.reset();
  test::check_nothing_left();
}

// A snapshot shows a stitched block at its own address, and not at its granules' homes.
TEST(a_stitched_block_is_a_segment) {
  test::running() = "stitched";
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", "32MiB"}});
  std::vector<Live> live;
  std::vector<void*> parts;
  for (int i = 0; i < 8; ++i) parts.push_back(glake_malloc(4 * kMiB, 0, nullptr));
  for (size_t i = 0; i < 8; i += 2) OK(glake_free(parts[i]));
  for (size_t i = 1; i < 8; i += 2) live.push_back({parts[i], 4 * kMiB, nullptr});
  check(snapshot(), live);
  void* wide = glake_malloc(13 * kMiB, 0, nullptr);
  CHECK(wide != nullptr && test::stat("glake.stitches") == 1);
  live.push_back({wide, 13 * kMiB, nullptr});
  Shot shot = snapshot();
  check(shot, live);
  int found = 0;
  for (const Shot::Segment& s : shot.segments) {
    if (s.info.address != reinterpret_cast<uint64_t>(wide)) continue;
    ++found;
    CHECK(s.info.bytes == 13 * kMiB && s.blocks.size() == 1 && s.info.kind == GLAKE_STITCHED);
  }
  CHECK(found == 1);
  for (const Live& l : live) OK(glake_free(l.ptr));
  OK(glake_shutdown());
  test::check_nothing_left();
}

// In debug modes, a snapshot shows freed blocks that are kept from reuse as waiting. Requested
// bytes are those of callers, without guards.
TEST(debug_blocks) {
  test::running() = "debug";
  test::fresh_simulator({{"memory", "256MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", "32MiB"}, {"debug", "guard,poison"}});
  void* ptr = glake_malloc(5000, 0, nullptr);
  void* freed = glake_malloc(3 * kMiB, 0, nullptr);
  OK(glake_free(freed));
  Shot shot = snapshot();
  Sums sums = check(shot, {{static_cast<char*>(ptr) - 512, 5000, nullptr}});
  CHECK(sums.waiting == static_cast<int64_t>(3 * kMiB + 1024));
  OK(glake_free(ptr));
  OK(glake_shutdown());
  OK(glake_configure("debug", "none"));
}

TEST(random_programs_balanced) {
  for (uint64_t seed : {1, 2}) random_programs("balanced", seed);
}

TEST(random_programs_compact) {
  for (uint64_t seed : {1, 2}) random_programs("compact", seed);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
