// Memory that the driver refuses to take back has a status of its own, is counted, and is used
// again before glake asks for new memory.
#include <cuda.h>

#include "harness.h"

namespace {

using test::kMiB;
using test::stat;

void start(const char* limit = "64MiB") {
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", limit}});
}

void finish() {
  OK(glake_shutdown());
  test::check_nothing_left();
}

void refuse(const char* call, int64_t times = -1) {
  CHECK(simcuda_fail(call, 1, CUDA_ERROR_UNKNOWN, times) == 0);
}
void allow() { CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0); }

bool says(const char* words) { return test::last_error().find(words) != std::string::npos; }

int64_t used() { return test::number_in(test::ledger(), "used_bytes"); }

TEST(a_refused_release_is_said_and_used_again) {
  test::running() = "a refused release";
  start();
  CHECK(glake_owed_bytes(0) == 0);
  void* ptr = glake_malloc(20 * kMiB, 0, nullptr);
  CHECK(ptr != nullptr);
  const int64_t held = stat("glake.physical_bytes");
  OK(glake_free(ptr));
  refuse("cuMemRelease");
  GIVES(GLAKE_MEMORY_OWED, glake_empty_cache(0));
  CHECK_TEXT(says("20.00 MiB") && says("cuMemRelease") && says("CUDA_ERROR_UNKNOWN") &&
                 says("Nothing is lost") && says("again"),
             test::last_error());
  CHECK(stat("reserved_bytes.all.current") == 0 && stat("glake.owed_bytes") == held);
  CHECK(glake_owed_bytes(0) == held && used() == held);
  // The driver still refuses. The owed memory serves the request, and glake asks for no more.
  const int64_t creates = simcuda_calls("cuMemCreate");
  ptr = glake_malloc(20 * kMiB, 0, nullptr);
  CHECK(ptr != nullptr && used() == held && simcuda_calls("cuMemCreate") == creates);
  CHECK(stat("glake.owed_bytes") == 0 && stat("reserved_bytes.all.current") == held);
  OK(glake_check(0));
  OK(glake_free(ptr));
  allow();
  OK(glake_empty_cache(0));
  CHECK(used() == 0);
  finish();
}

// Owed memory serves requests even if it fills the limit.
TEST(what_is_owed_is_within_the_limit) {
  test::running() = "owed at the limit";
  start("20MiB");
  void* ptr = glake_malloc(20 * kMiB, 0, nullptr);
  OK(glake_free(ptr));
  refuse("cuMemRelease");
  GIVES(GLAKE_MEMORY_OWED, glake_empty_cache(0));
  ptr = glake_malloc(6 * kMiB, 0, nullptr);
  CHECK(ptr != nullptr && used() == static_cast<int64_t>(20 * kMiB));
  CHECK(stat("glake.owed_bytes") == static_cast<int64_t>(14 * kMiB));
  CHECK(glake_malloc(16 * kMiB, 0, nullptr) == nullptr);
  CHECK_TEXT(says("14.00 MiB of it owed") && says("largest fit now 14.00 MiB"), test::last_error());
  OK(glake_check(0));
  allow();
  OK(glake_free(ptr));
  finish();
}

TEST(a_refused_unmap_keeps_its_memory_in_use) {
  test::running() = "a refused unmap";
  start();
  void* ptr = glake_malloc(20 * kMiB, 0, nullptr);
  const int64_t held = stat("glake.physical_bytes");
  OK(glake_free(ptr));
  refuse("cuMemUnmap");
  GIVES(GLAKE_MEMORY_OWED, glake_empty_cache(0));
  CHECK_TEXT(says("0 bytes are owed (in no segment") &&
                 says("20.00 MiB stay mapped (in reserved") && says("cuMemUnmap"),
             test::last_error());
  CHECK(stat("reserved_bytes.all.current") == held && stat("glake.owed_bytes") == 0);
  CHECK(glake_owed_bytes(0) == 0);
  CHECK(glake_malloc(100 * kMiB, 0, nullptr) == nullptr);
  CHECK_TEXT(says("20.00 MiB of it idle and still mapped") && says("cuMemUnmap"),
             test::last_error());
  ptr = glake_malloc(20 * kMiB, 0, nullptr);
  CHECK(ptr != nullptr && used() == held);
  OK(glake_free(ptr));
  allow();
  OK(glake_empty_cache(0));
  finish();
}

// The driver refuses a growth half-way, and its undo too. The half that exists serves the next
// request.
TEST(half_a_growth_serves) {
  test::running() = "half a growth";
  start();
  refuse("cuMemUnmap");
  CHECK(simcuda_fail("cuMemCreate", 6, CUDA_ERROR_OUT_OF_MEMORY, -1) == 0);
  CHECK(glake_malloc(20 * kMiB, 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
  CHECK(used() == static_cast<int64_t>(10 * kMiB));
  const int64_t creates = simcuda_calls("cuMemCreate");
  void* ptr = glake_malloc(10 * kMiB, 0, nullptr);
  CHECK_TEXT(ptr != nullptr && used() == static_cast<int64_t>(10 * kMiB), test::last_error());
  CHECK(simcuda_calls("cuMemCreate") == creates && stat("glake.owed_bytes") == 0);
  OK(glake_check(0));
  allow();
  OK(glake_free(ptr));
  finish();
}

// The driver refuses a growth half-way, and its undo too. The half that exists serves the growth's
// own request, together with idle memory.
TEST(half_a_growth_serves_its_own_request) {
  test::running() = "half a growth and its own request";
  test::fresh_simulator({{"phantom", "1"}, {"memory", "64MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", "100%"}});
  void* idle = glake_malloc(4 * kMiB, 0, nullptr);
  void* live = glake_malloc(4 * kMiB, 0, nullptr);
  CHECK(idle != nullptr && live != nullptr);
  OK(glake_free(idle));
  {
    test::CurrentContext context;
    CUdeviceptr outside = 0;
    CU(cuMemAlloc(&outside, 50 * kMiB));  // this leaves three granules
    refuse("cuMemUnmap");
    void* block = glake_malloc(10 * kMiB, 0, nullptr);
    CHECK_TEXT(block != nullptr, test::last_error());
    OK(glake_check(0));
    allow();
    OK(glake_free(block));
    CU(cuMemFree(outside));
  }
  OK(glake_free(live));
  finish();
}

TEST(contiguous_blocks_are_used_again) {
  for (int kind : {GLAKE_CONTIGUOUS_VMM, GLAKE_CONTIGUOUS_LEGACY}) {
    test::running() = "contiguous, kind " + std::to_string(kind);
    start("32MiB");
    void* ptr = glake_malloc_contiguous(20 * kMiB, 0, nullptr, kind);
    CHECK(ptr != nullptr);
    OK(glake_free(ptr));
    refuse(kind == GLAKE_CONTIGUOUS_LEGACY ? "cuMemFree" : "cuMemRelease");
    GIVES(GLAKE_MEMORY_OWED, glake_empty_cache(0));
    CHECK(stat("glake.owed_bytes") == static_cast<int64_t>(20 * kMiB));
    ptr = glake_malloc_contiguous(20 * kMiB, 0, nullptr, kind);
    CHECK_TEXT(ptr != nullptr && used() == static_cast<int64_t>(20 * kMiB), test::last_error());
    CHECK(stat("glake.owed_bytes") == 0);
    OK(glake_check(0));
    OK(glake_free(ptr));
    allow();
    finish();
  }
}

// The driver takes the memory back, but not the addresses. The status reports that too.
TEST(refused_addresses_are_said) {
  test::running() = "refused addresses";
  start("32MiB");
  void* ptr = glake_malloc_contiguous(20 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM);
  CHECK(ptr != nullptr);
  OK(glake_free(ptr));
  refuse("cuMemAddressFree");
  for (int again = 0; again < 2; ++again) {
    GIVES(GLAKE_MEMORY_OWED, glake_empty_cache(0));
    CHECK_TEXT(says("0 bytes are owed") && says("20.00 MiB of addresses stay reserved") &&
                   says("cuMemAddressFree: CUDA_ERROR_UNKNOWN"),
               test::last_error());
  }
  CHECK(used() == 0 && stat("glake.owed_bytes") == 0 && stat("reserved_bytes.all.current") == 0);
  CHECK(glake_malloc(100 * kMiB, 0, nullptr) == nullptr);
  CHECK_TEXT(says("20.00 MiB of addresses that the driver refuses to take back") &&
                 says("largest fit now 32.00 MiB") && says("cuMemAddressFree"),
             test::last_error());
  CHECK(glake_shutdown() != GLAKE_OK);
  CHECK_TEXT(says("cuMemAddressFree"), test::last_error());
  allow();
  OK(glake_empty_cache(0));
  finish();
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
