// The debug modes find damage in stream order, and name it. They report nothing else. If the driver
// refuses a call, a check may be missed, but no request fails. See docs/debugging.md.
#include <algorithm>
#include <memory>
#include <thread>

#include "debug_bench.h"

namespace {

using namespace debugging;

// The write that does the damage has not run yet when the block is freed.
TEST(overruns_are_found_in_stream_order) {
  Bench bench("guard");
  CUstream s = bench.stream[1];
  struct Case {
    int64_t offset;
    const char* words;
  };
  for (Case c : {Case{1000, "past the end"}, Case{1023, "past the end"}, Case{1500, "past the end"},
                 Case{-1, "before the start"}, Case{-512, "before the start"}}) {
    test::running() = "a write at " + std::to_string(c.offset);
    glake_set_tag("victim");
    void* ptr = get(1000, s);
    glake_set_tag(nullptr);
    CU(cuMemsetD8Async(at(ptr, c.offset), 0x11, 1, s));
    OK(glake_free(ptr));
    CHECK_TEXT(findings().empty(), "nothing has run yet");
    CU(cuStreamSynchronize(s));
    const std::string text = findings();
    CHECK_TEXT(has(text, c.words) && has(text, "of 1000 bytes, tag \"victim\""), text);
    CHECK_TEXT(has(text, "[" + std::to_string(c.offset) + "] should be 0xfb, is 0x11"), text);
    CHECK_TEXT(has(text, ": 1 byte changed"), text);
    CHECK(findings().empty());  // read once
  }
}

// Statistics count what callers asked for. The room for guards is in the blocks' sizes alone.
TEST(guards_are_not_requested) {
  Bench bench("guard", "64MiB");
  const auto asked = [] { return test::stat("requested_bytes.all.current"); };
  void* small = get(1000);
  void* large = get(3 * kMiB + 5, bench.stream[1]);
  CHECK(asked() == 1000 + 3 * kMiB + 5);
  CHECK(test::stat("requested_bytes.all.peak") == asked());
  CHECK(test::stat("allocated_bytes.all.current") > asked() + 2048);
  CHECK(glake_malloc(80 * kMiB, 0, nullptr) == nullptr);
  CHECK_TEXT(has(test::last_error(), "live 3.00 MiB in 2 blocks"), test::last_error());
  OK(glake_free(small));
  OK(glake_check(0));
  small = get(900);  // from the thread's cache
  CHECK(asked() == 900 + 3 * kMiB + 5);
  for (void* block : {small, large}) OK(glake_free(block));
  OK(glake_check(0));
  CHECK(asked() == 0);
}

// A freed pointer may now point to the front guard of another block. A second free of the pointer
// must not free that block.
TEST(a_guard_is_no_block) {
  Bench bench("guard");
  auto* block = static_cast<char*>(get(1000));
  void* guard = block - 512;
  for (auto refused : {+[](void* ptr) { return glake_free(ptr); },
                       +[](void* ptr) { return glake_record_stream(ptr, nullptr); },
                       +[](void* ptr) { return glake_pin(ptr); }}) {
    GIVES(GLAKE_INVALID_POINTER, refused(guard));
    const std::string text = test::last_error();
    CHECK_TEXT(has(text, "it is the guard in front of 0x"), text);
  }
  CHECK(test::stat("allocation.all.current") == 1);
  OK(glake_free(block));
}

TEST(check_finds_damage_to_live_blocks_once) {
  Bench bench("guard,trace");
  void* good = get(4096);
  void* bad = get(3 * kMiB + 5, bench.stream[1]);
  OK(glake_check(0));
  CU(cuMemsetD8Async(at(bad, 3 * kMiB + 5), 7, 3, bench.stream[1]));
  GIVES(GLAKE_CORRUPTED, glake_check(0));
  const std::string text = test::last_error();
  CHECK_TEXT(has(text, "of 3145733 bytes") && has(text, "3 bytes changed"), text);
  CHECK_TEXT(has(text, "allocated at") && has(text, "debug_test"), text);
  CHECK_TEXT(!has(text, "of 4096 bytes"), text);
  OK(glake_check(0));
  OK(glake_free(bad));
  OK(glake_free(good));
  OK(glake_check(0));
  CHECK(findings().empty());
}

TEST(writes_after_free_are_blamed) {
  Bench bench("poison,trace");
  CUstream s = bench.stream[1];
  glake_set_tag("first");
  void* ptr = get(5000, s);
  glake_set_tag("other");
  void* other = get(5000, s);
  glake_set_tag(nullptr);
  OK(glake_free(ptr));
  OK(glake_free(other));
  CU(cuMemsetD8Async(at(ptr, 40), 1, 2, s));
  GIVES(GLAKE_CORRUPTED, glake_check(0));
  std::string text = test::last_error();
  CHECK_TEXT(has(text, "write after free") && has(text, "tag \"first\""), text);
  CHECK_TEXT(has(text, "[41] should be 0xdd, is 0x01") && has(text, "freed at"), text);
  CHECK_TEXT(!has(text, "tag \"other\""), text);
  OK(glake_check(0));
  // A second free is refused, and says where the first was.
  GIVES(GLAKE_INVALID_POINTER, glake_free(ptr));
  CHECK_TEXT(has(test::last_error(), "freed already") && has(test::last_error(), "first"),
             test::last_error());
}

// The damage is found when the bytes are given out again, although nobody asked for a check.
TEST(writes_after_free_are_found_at_reuse) {
  Bench bench("poison,guard", "16MiB");
  glake_set_tag("old");
  void* old = get(3 * kMiB);
  glake_set_tag(nullptr);
  OK(glake_free(old));
  CU(cuMemsetD8Async(at(old, 2 * kMiB), 0x77, 700 * kKiB, nullptr));
  void* whole = get(13 * kMiB);  // more than is left: kept bytes are given out again
  CHECK(findings().empty());
  CU(cuStreamSynchronize(nullptr));
  const std::string text = findings();
  CHECK_TEXT(has(text, "write after free") && has(text, "tag \"old\""), text);
  CHECK_TEXT(has(text, "716800 bytes changed, the first at offset 2097152"), text);
  CHECK_TEXT(count_of(text, "glake debug:") == 1, text);
  unsigned char fresh[4] = {};
  CU(cuMemcpyDtoH(fresh, at(whole, 13 * kMiB - 4), 4));
  CHECK(fresh[0] == 0xcb && fresh[3] == 0xcb);
  OK(glake_free(whole));
  OK(glake_check(0));
}

// Random work on several streams stays within the blocks. Nothing may be found.
void clean_programs_find_nothing(uint64_t seed, const char* modes) {
  test::running() = std::string(modes) + ", seed " + std::to_string(seed);
  Bench bench(modes, "40MiB", std::to_string(seed).c_str());
  test::Dice dice(seed);
  struct Live {
    void* ptr;
    size_t bytes;
    int on;
  };
  std::vector<Live> live;
  int refused = 0, stitched = 0;
  auto drop = [&](size_t i) {
    OK(glake_free(live[i].ptr));
    live[i] = live.back();
    live.pop_back();
  };
  for (int i = 0; i < 1200 / test::kSlowdown; ++i) {
    if (live.empty() || dice.chance(52)) {
      size_t bytes =
          dice.chance(50) ? dice(1, 3000) : dice(1, dice.chance(20) ? 9 : 4) * kMiB - dice(0, 900);
      int on = static_cast<int>(dice(0, kStreams - 1));
      void* ptr = glake_malloc(bytes, 0, bench.stream[on]);
      if (ptr == nullptr) {
        CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
        ++refused;
        for (int n = 0; n < 3 && !live.empty(); ++n) drop(dice(0, live.size() - 1));
        continue;
      }
      size_t known = 0;
      OK(glake_block_info(ptr, &known, nullptr, nullptr));
      CHECK(known == bytes);
      live.push_back({ptr, bytes, on});
      CU(cuMemsetD8Async(at(ptr, 0), static_cast<unsigned char>(i), bytes, bench.stream[on]));
    } else {
      size_t one = dice(0, live.size() - 1);
      if (dice.chance(30)) {
        CUstream s = bench.stream[dice(0, kStreams - 1)];
        CUevent event = nullptr;
        CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        CU(cuEventRecord(event, bench.stream[live[one].on]));
        CU(cuStreamWaitEvent(s, event, 0));
        CU(cuEventDestroy(event));
        CU(cuMemsetD8Async(at(live[one].ptr, 0), 9, live[one].bytes, s));
        OK(glake_record_stream(live[one].ptr, s));
      }
      drop(one);
    }
    if (dice.chance(2)) OK(glake_check(0));
    if (dice.chance(1)) OK(glake_empty_cache(0));
  }
  stitched = static_cast<int>(test::stat("glake.stitches"));
  while (!live.empty()) drop(live.size() - 1);
  OK(glake_check(0));
  CHECK_TEXT(findings().empty(), "found in a clean program");
  CHECK(test::stat("glake.debug_checks") > 10 && test::stat("glake.debug_skipped") == 0);
  CHECK(test::violations() == "[]");
  std::printf("%s: %d refusals, %d stitches, %lld checks\n", modes, refused, stitched,
              static_cast<long long>(test::stat("glake.debug_checks")));
}

TEST(a_capturing_stream_is_left_alone) {
  Bench bench("guard,poison");
  CUstream s = bench.stream[1];
  void* before = get(2000, s);
  const int64_t skipped = test::stat("glake.debug_skipped");
  CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  void* inside = get(3000, s);
  OK(glake_free(before));
  OK(glake_check(0));
  CU(cuMemsetD8Async(at(inside, 0), 1, 3000, s));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(s, &graph));
  CU(cuGraphDestroy(graph));
  CHECK(test::stat("glake.debug_skipped") >= skipped + 3);
  OK(glake_free(inside));
  OK(glake_check(0));
}

TEST(out_of_memory_names_the_holders) {
  Bench bench("trace", "16MiB");
  glake_set_tag("weights");
  void* a = get(9 * kMiB);
  glake_set_tag(nullptr);
  void* b = get(3 * kMiB);
  CHECK(glake_malloc(8 * kMiB, 0, nullptr) == nullptr);
  const std::string text = test::last_error();
  CHECK_TEXT(has(text, "\nLargest holders:\n  9.00 MiB in 1 block: tag \"weights\""), text);
  CHECK_TEXT(has(text, "3.00 MiB in 1 block: blocks allocated at") && has(text, "debug_test"),
             text);
  OK(glake_free(a));
  OK(glake_free(b));
}

// Freed blocks are kept from reuse until they have 64 MiB in all. A late write into one is still
// reported.
TEST(freed_blocks_are_kept_from_reuse) {
  Bench bench("poison", "112MiB");
  void* old = get(3 * kMiB);
  OK(glake_free(old));
  void* next = get(3 * kMiB);
  CHECK(next != old);
  OK(glake_free(next));
  for (int i = 0; i < 5; ++i) {  // in the last round the block is not kept any more
    CU(cuMemsetD8Async(at(old, 0), 1, 1, nullptr));
    GIVES(GLAKE_CORRUPTED, glake_check(0));
    OK(glake_free(get(15 * kMiB)));
  }
}

// Blocks that are kept from reuse are given up before a request is refused.
TEST(kept_blocks_are_not_in_the_way) {
  Bench bench("poison", "32MiB");
  for (int i = 0; i < 20; ++i) {
    OK(glake_free(get(14 * kMiB)));
    CHECK(test::stat("allocation.all.current") == 0);
    OK(glake_check(0));
  }
  CHECK(test::stat("num_ooms") == 0);  // each request was served
  CHECK(glake_malloc(40 * kMiB, 0, nullptr) == nullptr);
  CHECK(test::stat("num_ooms") == 1);  // once, although it was tried twice
}

// A block lent by a private pool is guarded, checked and given back as any other.
TEST(lent_blocks_are_guarded) {
  Bench bench("guard,poison", "32MiB");
  const glake_pool pool = {7, 0};
  OK(glake_pool_retain(0, pool));
  OK(glake_pool_set_flags(0, pool, GLAKE_POOL_USE_ON_OOM));
  void* theirs = glake_pool_malloc(20 * kMiB, 0, nullptr, pool);
  CHECK(theirs != nullptr);
  OK(glake_free(theirs));
  void* lent = get(16 * kMiB);
  size_t bytes = 0;
  OK(glake_block_info(lent, &bytes, nullptr, nullptr));
  CHECK(bytes == 16 * kMiB);
  CU(cuMemsetD8Async(at(lent, -3), 1, 1, nullptr));
  OK(glake_free(lent));
  GIVES(GLAKE_CORRUPTED, glake_check(0));
  OK(glake_pool_release(0, pool));
  OK(glake_empty_cache(0));
  OK(glake_check(0));
}

TEST(threads_at_once) {
  Bench bench("guard,poison,trace");
  auto work = [](uint64_t seed) {
    test::Dice dice(seed);
    std::vector<void*> mine;
    for (int i = 0; i < 400 / test::kSlowdown; ++i) {
      if (mine.size() < 8) {
        size_t bytes = dice.chance(80) ? dice(1, 4000) : dice(1, 2) * kMiB;
        if (void* ptr = glake_malloc(bytes, 0, nullptr)) mine.push_back(ptr);
      } else {
        size_t one = dice(0, mine.size() - 1);
        OK(glake_free(mine[one]));
        mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(one));
      }
      if (i % 50 == 0) OK(glake_check(0));
    }
    for (void* ptr : mine) OK(glake_free(ptr));
  };
  std::thread other(work, 2);
  work(1);
  other.join();
  OK(glake_check(0));
  CHECK(findings().empty());
}

// With `sync`, memory may be written by the host as soon as a call returns.
TEST(sync_is_for_memory_the_host_writes) {
  Bench bench("guard,poison,sync");
  auto* bytes = static_cast<unsigned char*>(get(100));
  CHECK(bytes[0] == 0xcb && bytes[99] == 0xcb && bytes[100] == 0xfb && bytes[-1] == 0xfb);
  std::fill_n(bytes, 101, static_cast<unsigned char>(5));
  OK(glake_free(bytes));
  CHECK_TEXT(has(findings(), "[100] should be 0xfb, is 0x05"), "found at the free itself");
  CHECK(bytes[3] == 0xdd);
  bytes[3] = 1;
  GIVES(GLAKE_CORRUPTED, glake_check(0));
}

TEST(clean_programs_with_guards_and_poison) { clean_programs_find_nothing(1, "guard,poison"); }
TEST(clean_programs_with_guards) { clean_programs_find_nothing(2, "guard"); }
TEST(clean_programs_with_poison_and_traces) { clean_programs_find_nothing(3, "poison,trace"); }

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
