// An out-of-memory error says the truth: the largest fit succeeds and a granule more does not, and
// the holder that it names has the memory.
#include <algorithm>
#include <memory>
#include <sstream>
#include <vector>

#include "harness.h"

namespace {

using test::kGranule;
using test::kMiB;

bool says(const char* words) { return test::last_error().find(words) != std::string::npos; }

size_t largest_fit() {
  const std::string text = test::last_error();
  CHECK_TEXT(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY, text);
  size_t at = text.find("largest fit now ");
  CHECK_TEXT(at != std::string::npos, text);
  return std::strtoull(text.c_str() + text.find('(', at) + 1, nullptr, 10);
}

void start(const char* memory, const char* limit, const char* policy) {
  test::fresh_simulator({{"phantom", "1"}, {"memory", memory}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", limit}, {"policy", policy}});
}

// The lines of the last refusal, without the indentation of all but the first.
std::vector<std::string> lines() {
  std::vector<std::string> found;
  std::istringstream text(test::last_error().substr(std::strlen("glake status 4: ")));
  for (std::string line; std::getline(text, line);) {
    CHECK_TEXT((line.compare(0, 2, "  ") == 0) == !found.empty(), line);
    found.push_back(found.empty() ? line : line.substr(2));
  }
  return found;
}

// The request stands first, as in PyTorch's text. Each other fact has a line of its own.
TEST(one_fact_a_line) {
  test::running() = "one fact a line";
  start("64MiB", "32MiB", "balanced");
  const glake_pool pool{2, 0};
  OK(glake_pool_retain(0, pool));
  void* pooled = glake_pool_malloc(8 * kMiB, 0, nullptr, pool);
  void* live = glake_malloc(6 * kMiB, 0, nullptr);
  OK(glake_pin(live));
  CHECK(glake_malloc(20 * kMiB, 0, nullptr) == nullptr);
  const std::vector<std::string> stitched = lines();
  const std::vector<std::string> wanted = {
      "CUDA out of memory. Tried to allocate 20.00 MiB on cuda:0",
      "limit 32.00 MiB of 64.00 MiB, held from the driver 14.00 MiB",
      "live 14.00 MiB in 2 blocks",
      "idle 0 bytes: 0 bytes in whole granules, 0 bytes in parts of granules held by live blocks",
      "6.00 MiB pinned for others, out of stitching",
      "largest fit now 18.00 MiB (18874368 bytes)",
      "Raising GLAKE_LIMIT by 2.00 MiB would let this request through (GLAKE_LIMIT=34MiB).",
      "besides, private pool {2, 0} holds 8.00 MiB (0 bytes idle, users 1)",
      "ending graphs and pools that are no longer needed gives theirs back"};
  CHECK_TEXT(stitched == wanted, test::last_error());
  CHECK(glake_malloc_contiguous(19 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM) == nullptr);
  const std::vector<std::string> contiguous = lines();
  CHECK_TEXT(contiguous[0] ==
                     "CUDA out of memory. Tried to allocate 19.00 MiB, which is 20.00 MiB in whole "
                     "granules, on cuda:0" &&
                 contiguous[1] == "no room for a contiguous block",
             test::last_error());
  OK(glake_unpin(live));
  for (void* block : {live, pooled}) OK(glake_free(block));
  OK(glake_pool_release(0, pool));
  OK(glake_shutdown());
}

// Memory of this process that glake does not hold: 150 of 256 MiB.
TEST(memory_outside_glake) {
  test::running() = "memory outside glake";
  start("256MiB", "100%", "balanced");
  OK(glake_free(glake_malloc(kMiB, 0, nullptr)));
  OK(glake_empty_cache(0));
  test::CurrentContext context;
  CUdeviceptr outside = 0;
  CU(cuMemAlloc(&outside, 150 * kMiB));
  CHECK(glake_malloc(200 * kMiB, 0, nullptr) == nullptr);
  CHECK_TEXT(largest_fit() == 106 * kMiB, test::last_error());
  CHECK_TEXT(says("CUDA out of memory. Tried to allocate 200.00 MiB"), test::last_error());
  CHECK_TEXT(says("150.00 MiB is held outside glake") && says("this process's other allocations"),
             test::last_error());
  void* rest = glake_malloc(106 * kMiB, 0, nullptr);
  CHECK_TEXT(rest != nullptr, test::last_error());
  CHECK(glake_malloc(kMiB, 0, nullptr) == nullptr && largest_fit() == 0);
  OK(glake_free(rest));
  CU(cuMemFree(outside));
  OK(glake_shutdown());
}

// A freed contiguous block that is pinned is not given back. It serves no request that is much
// shorter.
TEST(a_pinned_block_is_named) {
  test::running() = "a freed but pinned contiguous block";
  test::fresh_simulator({{"phantom", "1"}, {"memory", "48MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", "100%"}, {"contiguous", "4MiB"}});
  void* block = glake_malloc(38 * kMiB, 0, nullptr);
  CHECK(block != nullptr);
  OK(glake_pin(block));
  OK(glake_free(block));
  CHECK(glake_malloc(16 * kMiB, 0, nullptr) == nullptr);
  CHECK_TEXT(
      largest_fit() == 38 * kMiB && says("glake_unpin()") && says("Unpin, or free about 6.00 MiB"),
      test::last_error());
  OK(glake_unpin(block));
  void* next = glake_malloc(16 * kMiB, 0, nullptr);
  CHECK_TEXT(next != nullptr, test::last_error());
  OK(glake_free(next));
  OK(glake_shutdown());
}

// Pinned granules that lie side by side in a view serve a request. The view is extended by free
// granules, or by new ones, even if the driver has just refused a larger growth.
TEST(a_view_of_pinned_granules_is_extended) {
  for (const bool grows : {false, true}) {
    test::running() =
        std::string("a view of pinned granules and ") + (grows ? "new" : "free") + " ones";
    start("64MiB", grows ? "16MiB" : "12MiB", "balanced");
    std::vector<void*> held(grows ? 5 : 6);
    for (void*& block : held) block = glake_malloc(2 * kMiB, 0, nullptr);
    test::CurrentContext context;
    CUdeviceptr outside = 0;
    if (grows) CU(cuMemAlloc(&outside, 52 * kMiB));  // this leaves one granule
    OK(glake_free(held[0]));
    OK(glake_free(held[2]));
    void* view = glake_malloc(4 * kMiB, 0, nullptr);
    CHECK_TEXT(view != nullptr, test::last_error());
    OK(glake_pin(view));
    OK(glake_free(view));
    if (!grows) OK(glake_free(held[4]));
    CHECK(glake_malloc(8 * kMiB, 0, nullptr) == nullptr);
    CHECK_TEXT(largest_fit() == 6 * kMiB, test::last_error());
    void* next = glake_malloc(6 * kMiB, 0, nullptr);
    CHECK_TEXT(next != nullptr, test::last_error());
    OK(glake_free(next));
    OK(glake_unpin(view));
    for (size_t i : {1, 3}) OK(glake_free(held[i]));
    if (grows) OK(glake_free(held[4]));
    if (!grows) OK(glake_free(held[5]));
    if (grows) CU(cuMemFree(outside));
    OK(glake_check(0));
    OK(glake_shutdown());
  }
}

// The driver refuses a granule after it has made some. The text does not contradict itself then.
TEST(a_refusal_comes_after_what_there_is) {
  test::running() = "a refusal after some granules";
  start("256MiB", "100%", "balanced");
  OK(glake_free(glake_malloc(kMiB, 0, nullptr)));
  OK(glake_empty_cache(0));
  test::CurrentContext context;
  CUdeviceptr outside = 0;
  CU(cuMemAlloc(&outside, 160 * kMiB));
  CHECK(glake_malloc(100 * kMiB, 0, nullptr) == nullptr);
  CHECK_TEXT(largest_fit() == 96 * kMiB && says("the driver has no more than 96.00 MiB") &&
                 says("it reports 96.00 MiB free"),
             test::last_error());
  CU(cuMemFree(outside));
  OK(glake_shutdown());
}

// A pool without users gives its memory up for a request, also under a lowered limit.
TEST(idle_pools_make_room_under_a_lowered_limit) {
  test::running() = "an idle pool under a lowered limit";
  start("256MiB", "none", "balanced");
  void* live = glake_malloc(34 * kMiB, 0, nullptr);
  OK(glake_free(glake_pool_malloc(30 * kMiB, 0, nullptr, {2, 0})));
  OK(glake_set_limit_fraction(0, 56.0 / 256));
  void* next = glake_malloc(6 * kMiB, 0, nullptr);
  CHECK_TEXT(next != nullptr, test::last_error());
  OK(glake_free(next));
  OK(glake_free(live));
  OK(glake_shutdown());
}

// Blocks that a pool keeps whole are joined before its next request is refused.
TEST(whole_blocks_are_joined_before_a_refusal) {
  test::running() = "freed whole blocks";
  start("64MiB", "100%", "balanced");
  const glake_pool pool{3, 0};
  OK(glake_pool_retain(0, pool));
  OK(glake_pool_set_flags(0, pool, GLAKE_POOL_NO_SPLIT));
  OK(glake_free(glake_pool_malloc(40 * kMiB, 0, nullptr, pool)));
  void* larger = glake_pool_malloc(50 * kMiB, 0, nullptr, pool);
  CHECK_TEXT(larger != nullptr, test::last_error());
  OK(glake_free(larger));
  OK(glake_pool_release(0, pool));
  OK(glake_shutdown());
}

// A whole block of a captured pool serves only the stream it was freed on.
TEST(whole_blocks_of_a_graph_are_no_fit_elsewhere) {
  test::running() = "whole blocks of a captured pool";
  start("64MiB", "16MiB", "balanced");
  const glake_pool pool{3, 0};
  OK(glake_free(glake_malloc(kMiB, 0, nullptr)));
  OK(glake_empty_cache(0));
  test::CurrentContext context;
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CU(cuStreamCreate(&stream, 1));
  OK(glake_pool_retain(0, pool));
  OK(glake_pool_set_flags(0, pool, GLAKE_POOL_NO_SPLIT));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(glake_free(glake_pool_malloc(12 * kMiB, 0, stream, pool)));
  CU(cuStreamEndCapture(stream, &graph));
  CHECK(glake_pool_malloc(8 * kMiB, 0, nullptr, pool) == nullptr);
  CHECK_TEXT(largest_fit() == 4 * kMiB, test::last_error());
  void* rest = glake_pool_malloc(4 * kMiB, 0, nullptr, pool);
  CHECK_TEXT(rest != nullptr, test::last_error());
  OK(glake_free(rest));
  CU(cuGraphDestroy(graph));
  OK(glake_pool_release(0, pool));
  OK(glake_shutdown());
  test::end_stream(stream);
}

TEST(a_limit_is_no_driver) {
  test::running() = "a limit";
  start("256MiB", "64MiB", "balanced");
  CHECK(glake_malloc(100 * kMiB, 0, nullptr) == nullptr);
  CHECK_TEXT(largest_fit() == 64 * kMiB && !says("driver has no more") && !says("outside glake"),
             test::last_error());
  OK(glake_shutdown());
}

// A size that the driver has just refused is no fit, whichever call it refused and whatever free
// memory it reports.
TEST(a_refusal_is_no_fit) {
  for (const char* call : {"cuMemSetAccess", "cuMemMap", "cuMemCreate"}) {
    for (int64_t times : {int64_t{1}, int64_t{9999}}) {
      test::running() = std::string(call) + " refused, times " + std::to_string(times);
      start("256MiB", "100%", "balanced");
      int64_t nth = std::strcmp(call, "cuMemSetAccess") == 0 ? 1 : 101;
      CHECK(simcuda_fail(call, nth, CUDA_ERROR_OUT_OF_MEMORY, times) == 0);
      const size_t tried = 250 * kMiB;
      void* ptr = glake_malloc(tried, 0, nullptr);
      if (times == 1 && ptr != nullptr) {  // a later try of the same request
        OK(glake_free(ptr));
        OK(glake_shutdown());
        continue;
      }
      CHECK(ptr == nullptr);
      size_t fits = largest_fit();
      CHECK_TEXT(fits < tried && says(call) && says("reports free"), test::last_error());
      // The text for a request that the limit alone forbids names the refused call too.
      CHECK(glake_malloc(400 * kMiB, 0, nullptr) == nullptr);
      CHECK_TEXT(largest_fit() <= fits && says(call), test::last_error());
      CHECK(glake_malloc(256 * kMiB, 0, nullptr) == nullptr);
      CHECK_TEXT(largest_fit() <= fits && says(call), test::last_error());
      CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
      OK(glake_empty_cache(0));
      ptr = glake_malloc(256 * kMiB, 0, nullptr);
      CHECK_TEXT(ptr != nullptr, test::last_error());
      OK(glake_free(ptr));
      OK(glake_shutdown());
    }
  }
}

// A contiguous block is one driver allocation. A size that the driver refused is no fit of that
// kind.
TEST(a_refused_contiguous_block_is_no_fit) {
  for (int kind : {GLAKE_CONTIGUOUS_VMM, GLAKE_CONTIGUOUS_LEGACY}) {
    const char* call = kind == GLAKE_CONTIGUOUS_LEGACY ? "cuMemAlloc" : "cuMemCreate";
    test::running() = std::string(call) + " refused a contiguous block";
    start("256MiB", "100%", "balanced");
    CHECK(simcuda_fail(call, 1, CUDA_ERROR_OUT_OF_MEMORY, 9999) == 0);
    const size_t tried = 200 * kMiB;
    CHECK(glake_malloc_contiguous(tried, 0, nullptr, kind) == nullptr);
    CHECK_TEXT(largest_fit() < tried && says(call) && says("reports 256.00 MiB free"),
               test::last_error());
    // The text for a larger request, which the limit alone forbids, names the refused call too.
    CHECK(glake_malloc_contiguous(400 * kMiB, 0, nullptr, kind) == nullptr);
    CHECK_TEXT(largest_fit() < tried && says(call), test::last_error());
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
    // The driver has refused nothing of the other kind, and no granules.
    void* ptr = glake_malloc_contiguous(tried, 0, nullptr, 3 - kind);
    CHECK_TEXT(ptr != nullptr, test::last_error());
    CHECK(glake_malloc(100 * kMiB, 0, nullptr) == nullptr);
    CHECK_TEXT(largest_fit() == 56 * kMiB && !says(call), test::last_error());
    OK(glake_free(ptr));
    OK(glake_empty_cache(0));
    // The driver has taken memory back since. Its earlier refusal says nothing any more.
    CHECK(glake_malloc_contiguous(400 * kMiB, 0, nullptr, kind) == nullptr);
    CHECK_TEXT(largest_fit() == 256 * kMiB && !says(call), test::last_error());
    ptr = glake_malloc_contiguous(256 * kMiB, 0, nullptr, kind);
    CHECK_TEXT(ptr != nullptr, test::last_error());
    OK(glake_free(ptr));
    OK(glake_shutdown());
  }
}

// Idle granules are no fit if the driver does not map them side by side.
TEST(a_refused_stitch_is_no_fit) {
  for (const char* call : {"cuMemMap", "cuMemSetAccess"}) {
    test::running() = std::string(call) + " refused a view";
    start("256MiB", "64MiB", "balanced");
    std::vector<void*> blocks;
    for (int i = 0; i < 16; ++i) blocks.push_back(glake_malloc(4 * kMiB, 0, nullptr));
    for (size_t i = 0; i < blocks.size(); i += 2) OK(glake_free(blocks[i]));
    const bool maps = std::strcmp(call, "cuMemMap") == 0;
    const int64_t nth = maps ? 6 : 1;  // five granules are mapped first
    CHECK(simcuda_fail(call, nth, CUDA_ERROR_OUT_OF_MEMORY, 9999) == 0);
    const size_t tried = 32 * kMiB;
    CHECK(glake_malloc(tried, 0, nullptr) == nullptr);
    const size_t fits = largest_fit();
    CHECK_TEXT(fits >= 4 * kMiB && fits < tried && says(call) && says("side by side"),
               test::last_error());
    CHECK(glake_malloc(40 * kMiB, 0, nullptr) == nullptr);  // more than the idle granules
    CHECK_TEXT(largest_fit() <= fits && says(call), test::last_error());
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
    void* ptr = glake_malloc(fits, 0, nullptr);
    CHECK_TEXT(ptr != nullptr, test::last_error());
    OK(glake_free(ptr));
    ptr = glake_malloc(tried, 0, nullptr);
    CHECK_TEXT(ptr != nullptr, test::last_error());
    CHECK(glake_malloc(40 * kMiB, 0, nullptr) == nullptr && !says(call));
    OK(glake_free(ptr));
    for (size_t i = 1; i < blocks.size(); i += 2) OK(glake_free(blocks[i]));
    OK(glake_check(0));
    OK(glake_shutdown());
  }
}

TEST(absurd_sizes) {
  test::running() = "absurd sizes";
  start("256MiB", "64MiB", "balanced");
  CHECK(glake_malloc(size_t{1} << 60, 0, nullptr) == nullptr);
  CHECK_TEXT(says("more than 1EB memory"), test::last_error());
  CHECK(glake_malloc((size_t{1} << 60) - 1, 0, nullptr) == nullptr);
  CHECK_TEXT(!says("more than 1EB memory"), test::last_error());
  OK(glake_shutdown());
}

class Random {
 public:
  Random(const char* policy, uint64_t seed) : dice_(seed), streams_(seed % 3 + 1, nullptr) {
    test::running() = std::string(policy) + ", seed " + std::to_string(seed);
    // With odd seeds the driver has less than the limit allows.
    start(seed % 2 == 1 ? "96MiB" : "256MiB", "96MiB", policy);
    OK(glake_free(glake_malloc(kMiB, 0, nullptr)));
    context_ = std::make_unique<test::CurrentContext>();
    for (size_t i = 1; i < streams_.size(); ++i) CU(cuStreamCreate(&streams_[i], 1));
    if (seed % 2 == 1) CU(cuMemAlloc(&outside_, 20 * kMiB));
  }

  void run() {
    int tried = 0;
    for (int i = 0; i < 20000 / test::kSlowdown && tried < 60; ++i) {
      size_t bytes = dice_.chance(30) ? dice_(1, kMiB) : dice_(kMiB, 24 * kMiB);
      CUstream on = streams_[dice_(0, streams_.size() - 1)];
      void* ptr = dice_.chance(60) ? glake_malloc(bytes, 0, on) : nullptr;
      if (ptr != nullptr) {
        live_.push_back(ptr);
      } else if (glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY) {
        ++tried;
        check_fit(on);
        for (int n = 0; n < 5; ++n) drop();
      } else {
        drop();
      }
    }
    CHECK(tried > 20);
    while (!live_.empty()) drop();
    if (outside_ != 0) CU(cuMemFree(outside_));
    OK(glake_check(0));
    OK(glake_shutdown());
    for (size_t i = 1; i < streams_.size(); ++i) test::end_stream(streams_[i]);
  }

 private:
  void check_fit(CUstream on) {
    const std::string text = test::last_error();
    size_t fits = largest_fit();
    void* more = glake_malloc(fits + kGranule, 0, on);
    CHECK_TEXT(more == nullptr, "a granule more fits: " + text);
    // It may be larger now, because the work of other streams may be known to be complete only now.
    CHECK_TEXT(largest_fit() >= fits, text + "\n  then: " + test::last_error());
    if (fits == 0) return;
    void* ptr = glake_malloc(fits, 0, on);
    CHECK_TEXT(ptr != nullptr, text);
    OK(glake_free(ptr));
  }
  void drop() {
    if (live_.empty()) return;
    std::swap(live_[dice_(0, live_.size() - 1)], live_.back());
    OK(glake_free(live_.back()));
    live_.pop_back();
  }

  test::Dice dice_;
  std::vector<CUstream> streams_;
  std::unique_ptr<test::CurrentContext> context_;
  CUdeviceptr outside_ = 0;
  std::vector<void*> live_;
};

TEST(random_programs_balanced) {
  for (uint64_t seed = 0; seed < 6; ++seed) Random("balanced", seed).run();
}

TEST(random_programs_compact) {
  for (uint64_t seed = 0; seed < 6; ++seed) Random("compact", seed).run();
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
