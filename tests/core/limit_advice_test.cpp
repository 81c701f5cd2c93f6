// The higher limit that an out-of-memory error advises is enough: with just that limit the request
// succeeds.
#include <cmath>
#include <cstring>
#include <vector>

#include "harness.h"

namespace {

using test::kGranule;
using test::kMiB;

void start(const char* memory, const char* limit, const char* contiguous = "none") {
  test::fresh_simulator({{"phantom", "1"}, {"memory", memory}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", limit}, {"contiguous", contiguous}});
}

void* get(size_t bytes, int kind = GLAKE_STITCHED) {
  void* block = glake_malloc_contiguous(bytes, 0, nullptr, kind);
  CHECK_TEXT(block != nullptr, test::last_error());
  return block;
}

// The bytes of a size such as "1.50 GiB".
size_t size_after(const std::string& text, const char* words) {
  const size_t at = text.find(words);
  CHECK_TEXT(at != std::string::npos, text);
  char* unit = nullptr;
  const double number = std::strtod(text.c_str() + at + std::strlen(words), &unit);
  CHECK_TEXT(std::strncmp(unit, " MiB", 4) == 0 || std::strncmp(unit, " GiB", 4) == 0, text);
  return static_cast<size_t>(std::llround(number * (unit[1] == 'G' ? 1024 * kMiB : kMiB)));
}

// Raises the limit as the last refusal advises, and checks that both figures of the text agree.
void raise_as_advised(size_t memory, size_t limit) {
  const std::string text = test::last_error();
  const size_t to = limit + size_after(text, "Raising GLAKE_LIMIT by ");
  const std::string set = "(GLAKE_LIMIT=" + std::to_string(to / kMiB) + "MiB)";
  CHECK_TEXT(to % kGranule == 0 && text.find(set) != std::string::npos, set + " in " + text);
  OK(glake_set_limit_fraction(0, static_cast<double>(to) / static_cast<double>(memory)));
}

// The advised limit is enough in three cases: only a pinned stretch fits; the free memory is two
// parts of one granule; glake holds more than a lowered limit.
TEST(a_raised_limit_is_enough) {
  const size_t memory = 256 * kMiB;
  for (const char* what : {"a pinned stretch", "within a granule", "a lowered limit"}) {
    test::running() = std::string("raising the limit: ") + what;
    start("256MiB", "64MiB");
    std::vector<void*> held;
    auto hold = [&held](size_t bytes) {
      held.push_back(glake_malloc(bytes, 0, nullptr));
      CHECK(held.back() != nullptr);
      return held.back();
    };
    size_t wanted = 0;
    void* pinned = nullptr;
    if (std::strcmp(what, "a pinned stretch") == 0) {
      pinned = hold(24 * kMiB);
      OK(glake_pin(pinned));
      hold(36 * kMiB);
      OK(glake_free(hold(4 * kMiB)));
      held.pop_back();
      OK(glake_free(pinned));
      held.erase(held.begin());
      wanted = 26 * kMiB;
    } else if (std::strcmp(what, "within a granule") == 0) {
      for (int i = 0; i < 31; ++i) hold(2 * kMiB);
      hold(600 * 1024);
      void* between = hold(800 * 1024);
      hold(600 * 1024);
      OK(glake_free(between));
      held.erase(held.end() - 2);
      wanted = 4813 * 1024;
    } else {
      OK(glake_set_limit_fraction(0, 1.0));
      hold(60 * kMiB);
      OK(glake_free(hold(60 * kMiB)));
      held.pop_back();
      OK(glake_set_limit_fraction(0, 0.25));
      wanted = 80 * kMiB;
    }
    CHECK(glake_malloc(wanted, 0, nullptr) == nullptr);
    raise_as_advised(memory, 64 * kMiB);
    hold(wanted);
    for (void* block : held) OK(glake_free(block));
    if (pinned != nullptr) OK(glake_unpin(pinned));
    OK(glake_shutdown());
  }
}

// A freed contiguous block that is pinned, or owed to the driver, is no part of a longer one.
TEST(a_kept_contiguous_block_is_no_growth) {
  for (const bool owed : {false, true}) {
    test::running() = owed ? "an owed contiguous block" : "a pinned contiguous block";
    start("256MiB", "64MiB");
    void* kept = get(38 * kMiB, GLAKE_CONTIGUOUS_VMM);
    if (!owed) OK(glake_pin(kept));
    OK(glake_free(kept));
    if (owed) {
      CHECK(simcuda_fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, 9999) == 0);
      GIVES(GLAKE_MEMORY_OWED, glake_empty_cache(0));
    }
    CHECK(glake_malloc_contiguous(50 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM) == nullptr);
    raise_as_advised(256 * kMiB, 64 * kMiB);
    OK(glake_free(get(50 * kMiB, GLAKE_CONTIGUOUS_VMM)));
    if (owed) CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
    if (!owed) OK(glake_unpin(kept));
    OK(glake_shutdown());
  }
}

// Owed granules can serve only arenas. They count against a lowered limit, so a contiguous block
// can have only the rest of that limit.
TEST(owed_granules_take_part_of_a_lowered_limit) {
  test::running() = "owed granules under a lowered limit";
  start("256MiB", "128MiB");
  void* live = get(40 * kMiB);
  OK(glake_free(get(60 * kMiB)));
  CHECK(simcuda_fail("cuMemRelease", 1, CUDA_ERROR_UNKNOWN, 9999) == 0);
  GIVES(GLAKE_MEMORY_OWED, glake_empty_cache(0));
  OK(glake_set_limit_fraction(0, 0.25));
  CHECK(glake_malloc_contiguous(30 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM) == nullptr);
  raise_as_advised(256 * kMiB, 64 * kMiB);
  OK(glake_free(get(30 * kMiB, GLAKE_CONTIGUOUS_VMM)));
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  OK(glake_free(live));
  OK(glake_shutdown());
}

// The advised raise is never less than what is missing, even if rounding to two decimals of a GiB
// would make it less.
TEST(a_large_raise_is_not_rounded_down) {
  test::running() = "a raise of 1.502 GiB";
  start("16GiB", "4GiB");
  void* live = get(size_t{4096} * kMiB);
  CHECK(glake_malloc(1538 * kMiB, 0, nullptr) == nullptr);
  raise_as_advised(size_t{16384} * kMiB, size_t{4096} * kMiB);
  OK(glake_free(get(1538 * kMiB)));
  OK(glake_free(live));
  OK(glake_shutdown());
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
