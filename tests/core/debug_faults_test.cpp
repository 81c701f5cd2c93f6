// If the driver refuses a call, the debug modes may miss a check. No request fails, no caller
// waits, and memory that is still being read is not given back. See docs/debugging.md.
#include <unistd.h>

#include "debug_bench.h"

namespace {

using namespace debugging;

// The scenario of the fault sweep.
int64_t play(int64_t k, int code, int64_t times) {
  test::running() = "call " + std::to_string(k) + " fails with " + std::to_string(code) +
                    ", times " + std::to_string(times);
  Bench bench("guard,poison,trace", "24MiB");
  OK(glake_free(get(512)));
  const int64_t before = simcuda_calls("*");
  if (k != 0) CHECK(simcuda_fail("*", k, code, times) == 0);
  std::vector<void*> held;
  auto take = [&](size_t bytes, CUstream s) {
    void* ptr = glake_malloc(bytes, 0, s);
    if (ptr != nullptr) held.push_back(ptr);
    if (ptr == nullptr) CHECK(k != 0);
  };
  auto drop = [&](size_t i) {
    if (i >= held.size()) return;
    OK(glake_free(held[i]));
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (int i = 0; i < 5; ++i) take(3 * kMiB, bench.stream[1]);
  take(2000, nullptr);
  if (!held.empty()) glake_record_stream(held[0], bench.stream[2]);
  drop(0);
  drop(1);
  take(5 * kMiB, bench.stream[1]);
  drop(0);
  int status = glake_check(0);
  CHECK(status == GLAKE_OK || (k != 0 && status == GLAKE_DRIVER_ERROR));
  take(9 * kMiB, bench.stream[2]);
  status = glake_empty_cache(0);
  CHECK(status == GLAKE_OK || (k != 0 && status == GLAKE_DRIVER_ERROR));
  const int64_t calls = simcuda_calls("*") - before;
  while (!held.empty()) drop(held.size() - 1);
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  OK(glake_check(0));
  CHECK_TEXT(findings().empty(), "a refused call is no damage");
  CHECK(test::stat("allocated_bytes.all.current") == 0);
  CHECK(test::stat("glake.physical_bytes") == test::number_in(test::ledger(), "used_bytes"));
  if (k == 0) CHECK(test::stat("glake.debug_skipped") == 0);
  return calls;
}

TEST(refused_calls_cost_a_check) {
  const int64_t n = play(0, 0, 0);
  int64_t runs = 0;
  constexpr int64_t kTimes[] = {1, 2, -1};
  for (int64_t k = 1; k <= n; k += test::kSlowdown == 1 ? 5 : 17) {
    play(k, k % 2 == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN, kTimes[k / 2 % 3]);
    ++runs;
  }
  std::printf("%lld calls in the scenario, %lld runs with a fault\n", static_cast<long long>(n),
              static_cast<long long>(runs));
}

// Where every slab is in use, a check waits for the oldest copies and does not ask whether they
// have landed. A check that asks would wait for ever for a driver that refuses the question.
TEST(refused_queries_hang_nothing) {
  test::running() = "refused queries hang nothing";
  Bench bench("guard,poison", "112MiB");
  std::vector<void*> held;
  for (int i = 0; i < 6; ++i) held.push_back(get(14 * kMiB));
  CHECK(simcuda_fail("cuEventQuery", 1, CUDA_ERROR_UNKNOWN, -1) == 0);
  for (void* ptr : held) OK(glake_free(ptr));
  alarm(60);
  int status = glake_check(0);  // of more bytes than there are slabs
  CHECK(status == GLAKE_OK || status == GLAKE_DRIVER_ERROR);
  alarm(0);
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  OK(glake_check(0));
  CHECK_TEXT(findings().empty(), "a refused call is no damage");
}

// A check that cannot wait for its copies leaves them under way. The memory that they read stays
// mapped until the device has been synchronised.
TEST(copies_not_waited_for_keep_their_memory) {
  test::running() = "copies not waited for keep their memory";
  Bench bench("guard,poison", "24MiB");
  const glake_pool pool = {7, 0};
  OK(glake_free(get(14 * kMiB)));
  CHECK(glake_malloc(30 * kMiB, 0, nullptr) == nullptr);  // nothing is kept from reuse any more
  CHECK(simcuda_fail("cuCtxSynchronize", 2, CUDA_ERROR_UNKNOWN, 1) == 0);
  GIVES(GLAKE_DRIVER_ERROR, glake_check(0));
  void* theirs = glake_pool_malloc(20 * kMiB, 0, bench.stream[1], pool);
  CHECK_TEXT(test::violations() == "[]", test::violations());
  if (theirs != nullptr) OK(glake_free(theirs));
  OK(glake_check(0));
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
