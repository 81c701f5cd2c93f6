// Statistics as values, the limit that is set at run time, and what the driver says of the memory.
#include <memory>

#include "harness.h"

namespace {

using test::kKiB;
using test::kMiB;

void start() {
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"policy", "compact"}});
}
void finish() {
  OK(glake_check(0));
  OK(glake_shutdown());
  test::check_nothing_left();
}

glake_device_stats values() {
  glake_device_stats v;
  OK(glake_get_stats(0, &v, sizeof v));
  return v;
}

void check_stat(const char* name, const glake_stat (&stat)[3]) {
  const char* pools[] = {"all", "small_pool", "large_pool"};
  const std::string text = test::stats();
  for (int i = 0; i < 3; ++i) {
    const std::string key = std::string(name) + "." + pools[i] + ".";
    CHECK_TEXT(test::number_in(text, key + "current") == stat[i].current, key);
    CHECK_TEXT(test::number_in(text, key + "peak") == stat[i].peak, key);
    CHECK_TEXT(test::number_in(text, key + "allocated") == stat[i].allocated, key);
    CHECK_TEXT(test::number_in(text, key + "freed") == stat[i].freed, key);
  }
}

TEST(as_the_text_says) {
  test::running() = "as the text says";
  start();
  void* b = glake_malloc(1000, 0, nullptr);
  void* a = glake_malloc(5 * kMiB, 0, nullptr);
  OK(glake_free(glake_malloc(9 * kMiB, 0, nullptr)));
  glake_device_stats v = values();
  check_stat("allocation", v.allocation);
  check_stat("active", v.active);
  check_stat("allocated_bytes", v.allocated_bytes);
  check_stat("active_bytes", v.active_bytes);
  check_stat("requested_bytes", v.requested_bytes);
  check_stat("segment", v.segment);
  check_stat("reserved_bytes", v.reserved_bytes);
  check_stat("inactive_split", v.inactive_split);
  check_stat("inactive_split_bytes", v.inactive_split_bytes);
  CHECK(v.allocation[0].current == 2 && v.allocation[1].current == 1);
  CHECK(v.requested_bytes[2].current == static_cast<int64_t>(5 * kMiB));
  CHECK(v.device_allocs == simcuda_calls("cuMemCreate") && v.device_frees == 0);
  // Expandable segments are counted nowhere. All segments but contiguous ones are expandable.
  CHECK(v.segment[0].current == 0 && v.inactive_split[0].current == 0);
  void* whole = glake_malloc_contiguous(3 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM);
  glake_device_stats with_whole = values();
  CHECK(with_whole.segment[0].current == 1 && with_whole.inactive_split[2].current == 1);
  CHECK(with_whole.inactive_split_bytes[2].current == static_cast<int64_t>(kMiB));
  OK(glake_free(whole));
  OK(glake_empty_cache(0));
  CHECK(values().segment[0].current == 0 && values().segment[0].freed == 1);
  CHECK(values().inactive_split_bytes[0].current == 0);
  OK(glake_reset_accumulated_stats(0));
  glake_device_stats after = values();
  CHECK(after.allocation[0].allocated == 0 && after.allocation[0].freed == 0);
  CHECK(after.allocation[0].current == 2 && after.reserved_bytes[0].allocated == 0);
  CHECK(after.device_allocs == 0 && after.device_frees == 0);
  OK(glake_free(a));
  OK(glake_free(b));
  CHECK(values().allocation[0].freed == 2);
  OK(glake_reset_peak_stats(0));
  CHECK(values().allocation[0].peak == 0);

  int64_t few[2] = {-1, -1};  // a caller compiled with an older, shorter struct
  OK(glake_get_stats(0, reinterpret_cast<glake_device_stats*>(few), sizeof few[0]));
  CHECK(few[0] == 0 && few[1] == -1);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_get_stats(0, nullptr, sizeof v));
  GIVES(GLAKE_INVALID_DEVICE, glake_get_stats(3, &v, sizeof v));
  finish();
}

// A freed block was recorded on more streams than the tickets of a free block can name. Until the
// work of all these streams is done, the block and its requested bytes count as active.
TEST(what_waits_is_active) {
  test::running() = "what waits is active";
  start();
  auto context = std::make_unique<test::CurrentContext>();
  CUstream streams[9];
  for (CUstream& s : streams) CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  void* ptr = glake_malloc(3 * kMiB - 100, 0, nullptr);
  for (CUstream s : streams) OK(glake_record_stream(ptr, s));
  OK(glake_free(ptr));
  glake_device_stats v = values();
  CHECK(v.allocation[0].current == 0 && v.allocated_bytes[2].current == 0);
  CHECK(v.active[0].current == 1 && v.active[2].current == 1 && v.active[0].freed == 0);
  CHECK(v.active_bytes[0].current == static_cast<int64_t>(3 * kMiB));
  CHECK(v.requested_bytes[0].current == static_cast<int64_t>(3 * kMiB - 100));
  check_stat("active", v.active);
  check_stat("active_bytes", v.active_bytes);
  OK(glake_empty_cache(0));
  v = values();
  CHECK(v.active[0].current == 0 && v.active[0].allocated == 1 && v.active[0].freed == 1);
  CHECK(v.active_bytes[0].current == 0 && v.requested_bytes[0].current == 0);
  CHECK(v.active_bytes[0].peak == static_cast<int64_t>(3 * kMiB));
  for (CUstream s : streams) test::end_stream(s);
  context.reset();
  finish();
}

TEST(the_limit) {
  test::running() = "the limit";
  start();
  CHECK(glake_limit_fraction(0) == 1.0);
  for (double bad : {0.0, -0.5, 1.01, 0.0 / 0.0}) {
    GIVES(GLAKE_INVALID_ARGUMENT, glake_set_limit_fraction(0, bad));
  }
  OK(glake_set_limit_fraction(0, 0.25));
  CHECK(glake_limit_fraction(0) == 0.25);
  CHECK(test::stat("glake.limit_bytes") == static_cast<int64_t>(64 * kMiB));
  CHECK(glake_malloc(66 * kMiB, 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
  void* a = glake_malloc(60 * kMiB, 0, nullptr);
  CHECK(a != nullptr);
  OK(glake_set_limit_fraction(0, 0.125));  // memory that is held stays, and nothing grows
  CHECK(glake_malloc(6 * kMiB, 0, nullptr) == nullptr);
  CHECK(test::stat("glake.physical_bytes") == static_cast<int64_t>(60 * kMiB));
  OK(glake_free(a));
  OK(glake_free(glake_malloc(50 * kMiB, 0, nullptr)));
  OK(glake_set_limit_fraction(0, 1));
  OK(glake_free(glake_malloc(200 * kMiB, 0, nullptr)));
  CHECK(glake_limit_fraction(7) == -GLAKE_INVALID_DEVICE);
  finish();
}

TEST(what_is_free) {
  test::running() = "what is free";
  start();
  size_t free = 0, total = 0, largest = 1;
  OK(glake_largest_free(0, &largest));
  CHECK(largest == 0);
  std::vector<void*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(glake_malloc(4 * kMiB, 0, nullptr));
  OK(glake_memory_info(0, &free, &total));
  CHECK(total == 256 * kMiB && free == total - 20 * kMiB);
  OK(glake_memory_info(0, nullptr, nullptr));
  for (size_t i = 0; i < 5; i += 2) OK(glake_free(blocks[i]));
  OK(glake_largest_free(0, &largest));
  CHECK(largest == 12 * kMiB);  // stitched
  int64_t created = simcuda_calls("cuMemCreate");
  OK(glake_free(glake_malloc(largest, 0, nullptr)));
  CHECK(simcuda_calls("cuMemCreate") == created);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_largest_free(0, nullptr));
  for (size_t i = 1; i < 5; i += 2) OK(glake_free(blocks[i]));
  CHECK(simcuda_fail("cuMemGetInfo", 1, CUDA_ERROR_UNKNOWN, 1) == 0);
  GIVES(GLAKE_DRIVER_ERROR, glake_memory_info(0, &free, &total));
  finish();
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
