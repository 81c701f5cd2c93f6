// Headroom: memory of a device that the core leaves free for others.
#include <memory>
#include <string>
#include <vector>

#include "harness.h"

namespace {

using test::kMiB;
constexpr size_t kMemory = 256 * kMiB;

void start() {
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}, {"devices", "2"}});
  test::configure({{"driver", "sim"}, {"policy", "balanced"}});
}
void finish() {
  OK(glake_check(0));
  OK(glake_shutdown());
  test::check_nothing_left();
}

size_t free_bytes() {
  size_t free = 0;
  OK(glake_memory_info(0, &free, nullptr));
  return free;
}

bool says(const char* text) { return test::last_error().find(text) != std::string::npos; }

TEST(nothing_grows_into_it) {
  test::running() = "nothing grows into it";
  start();
  size_t free = 1, bytes = 0;
  void* first = glake_malloc(100 * kMiB, 0, nullptr);
  OK(glake_set_headroom(0, 64 * kMiB, &free));
  CHECK(free == kMemory - 100 * kMiB);
  OK(glake_headroom(0, &bytes));
  CHECK(bytes == 64 * kMiB && test::stat("glake.headroom_bytes") == 64 << 20);
  void* second = glake_malloc(92 * kMiB, 0, nullptr);
  CHECK(second != nullptr && free_bytes() == 64 * kMiB);
  for (size_t bytes_more : {1 * kMiB, 2 * kMiB, 30 * kMiB}) {
    CHECK(glake_malloc(bytes_more, 0, nullptr) == nullptr);
    CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
    CHECK(says("64.00 MiB are headroom for others") && says("Lowering the headroom by "));
  }
  CHECK(glake_malloc_contiguous(2 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM) == nullptr);
  CHECK(glake_malloc_contiguous(2 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_LEGACY) == nullptr);
  CHECK(says("headroom") && free_bytes() == 64 * kMiB);
  // Memory that glake holds already is stitched as before.
  OK(glake_free(first));
  void* again = glake_malloc(60 * kMiB, 0, nullptr);
  CHECK(again != nullptr && free_bytes() == 64 * kMiB);
  OK(glake_set_headroom(0, 0, nullptr));
  void* more = glake_malloc(100 * kMiB, 0, nullptr);
  CHECK(more != nullptr);
  for (void* block : {second, again, more}) OK(glake_free(block));
  finish();
}

// The headroom is lowered as the out-of-memory text advises.
TEST(lowered_as_advised_it_is_enough) {
  test::running() = "lowered as advised it is enough";
  start();
  OK(glake_set_headroom(0, 64 * kMiB, nullptr));
  void* held = glake_malloc(180 * kMiB, 0, nullptr);
  CHECK(glake_malloc(20 * kMiB, 0, nullptr) == nullptr);
  CHECK(says("Lowering the headroom by 8.00 MiB would let"));
  OK(glake_set_headroom(0, 56 * kMiB, nullptr));
  void* next = glake_malloc(20 * kMiB, 0, nullptr);
  CHECK(next != nullptr);
  OK(glake_free(held));
  OK(glake_free(next));
  finish();
}

// Another program has taken a part of the headroom. Then the advice names that much more.
TEST(lowered_as_advised_where_others_hold_more) {
  for (const size_t set : {64 * kMiB, 63 * kMiB + 5}) {
    test::running() = "lowered as advised, of " + std::to_string(set);
    start();
    void* held = glake_malloc(180 * kMiB, 0, nullptr);
    OK(glake_set_headroom(0, set, nullptr));
    {
      test::CurrentContext context;
      CUdeviceptr other = 0;
      CU(cuMemAlloc(&other, 20 * kMiB));
      CHECK(free_bytes() == 56 * kMiB);
      CHECK(glake_malloc(20 * kMiB, 0, nullptr) == nullptr);
      CHECK_TEXT(says("Lowering the headroom by ") && says("GLAKE_HEADROOM=36MiB)"),
                 test::last_error());
      OK(glake_set_headroom(0, 38 * kMiB, nullptr));  // less than that is not enough
      CHECK(glake_malloc(20 * kMiB, 0, nullptr) == nullptr);
      OK(glake_set_headroom(0, 36 * kMiB, nullptr));
      void* next = glake_malloc(20 * kMiB, 0, nullptr);
      CHECK(next != nullptr);
      OK(glake_free(next));
      CU(cuMemFree(other));
    }
    OK(glake_free(held));
    finish();
  }
}

TEST(idle_memory_is_given_back) {
  test::running() = "idle memory is given back";
  start();
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(glake_malloc(30 * kMiB, 0, nullptr));
  for (size_t i = 0; i < 8; i += 2) OK(glake_free(blocks[i]));
  CHECK(free_bytes() == 16 * kMiB);
  size_t free = 0;
  OK(glake_set_headroom(0, 100 * kMiB, &free));
  CHECK(free >= 100 * kMiB && free <= 136 * kMiB && free == free_bytes());
  // glake gives back no more than it has free.
  OK(glake_set_headroom(0, 200 * kMiB, &free));
  CHECK(free == kMemory - 120 * kMiB);
  for (size_t i = 1; i < 8; i += 2) OK(glake_free(blocks[i]));
  finish();
}

// Other programs take memory, and glake gives memory back. Then the others free theirs, and glake
// may grow again.
TEST(others_come_and_go) {
  test::running() = "others come and go";
  start();
  OK(glake_set_headroom(0, 64 * kMiB, nullptr));
  void* held = glake_malloc(100 * kMiB, 0, nullptr);
  void* idle = glake_malloc(60 * kMiB, 0, nullptr);
  OK(glake_free(idle));
  auto context = std::make_unique<test::CurrentContext>();
  CUdeviceptr theirs = 0;
  CU(cuMemAlloc(&theirs, 60 * kMiB));
  size_t free = 0;
  OK(glake_set_headroom(0, 64 * kMiB, &free));
  CHECK(free >= 64 * kMiB);
  CHECK(glake_malloc(80 * kMiB, 0, nullptr) == nullptr);
  CU(cuMemFree(theirs));
  void* block = glake_malloc(80 * kMiB, 0, nullptr);
  CHECK(block != nullptr && free_bytes() >= 64 * kMiB);
  OK(glake_free(block));
  OK(glake_free(held));
  context.reset();
  finish();
}

TEST(all_devices_and_those_to_come) {
  test::running() = "all devices and those to come";
  start();
  size_t bytes = 0, free = 0;
  void* on_one = glake_malloc(2 * kMiB, 0, nullptr);
  OK(glake_set_headroom(-1, 32 * kMiB, &free));
  CHECK(free == kMemory - 2 * kMiB);
  for (int device : {-1, 0, 1}) {
    OK(glake_headroom(device, &bytes));
    CHECK(bytes == 32 * kMiB);
  }
  CHECK(glake_malloc(kMemory - 30 * kMiB, 1, nullptr) == nullptr);
  OK(glake_set_headroom(1, 0, nullptr));
  OK(glake_headroom(0, &bytes));
  CHECK(bytes == 32 * kMiB);
  void* whole = glake_malloc(kMemory - 30 * kMiB, 1, nullptr);
  CHECK(whole != nullptr);
  OK(glake_free(whole));
  OK(glake_free(on_one));
  finish();
}

TEST(bad_input) {
  test::running() = "bad input";
  start();
  size_t bytes = 0;
  OK(glake_set_headroom(0, 2 * kMiB, nullptr));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_set_headroom(0, kMemory, nullptr));
  CHECK(says("give less"));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_set_headroom(-1, SIZE_MAX, nullptr));
  OK(glake_headroom(0, &bytes));
  CHECK(bytes == 2 * kMiB);
  for (int device : {-2, 64, 99}) {
    GIVES(GLAKE_INVALID_DEVICE, glake_set_headroom(device, 0, nullptr));
    GIVES(GLAKE_INVALID_DEVICE, glake_headroom(device, &bytes));
  }
  GIVES(GLAKE_INVALID_ARGUMENT, glake_headroom(0, nullptr));
  // A driver that does not say what is free can keep no promise.
  CHECK(simcuda_fail("cuMemGetInfo", 1, CUDA_ERROR_UNKNOWN, -1) == 0);
  CHECK(glake_malloc(2 * kMiB, 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  OK(glake_set_headroom(0, 0, nullptr));
  OK(glake_free(glake_malloc(2 * kMiB, 0, nullptr)));
  finish();
}

// The headroom is set, and the memory that the driver keeps is reported.
TEST(a_driver_that_takes_nothing_back) {
  test::running() = "a driver that takes nothing back";
  start();
  OK(glake_free(glake_malloc(200 * kMiB, 0, nullptr)));
  CHECK(simcuda_fail("cuMemRelease", 1, CUDA_ERROR_UNKNOWN, -1) == 0);
  GIVES(GLAKE_MEMORY_OWED, glake_set_headroom(0, 100 * kMiB, nullptr));
  CHECK(says("refused to take back"));
  size_t bytes = 0, free = 0;
  OK(glake_headroom(0, &bytes));
  CHECK(bytes == 100 * kMiB);
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  OK(glake_set_headroom(0, 100 * kMiB, &free));
  CHECK(free >= 100 * kMiB);
  finish();
}

TEST(by_option) {
  test::running() = "by option";
  start();
  OK(glake_configure("headroom", "0.25GiB"));
  CHECK(glake_malloc(2 * kMiB, 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_OPTION);
  OK(glake_shutdown());
  OK(glake_configure("headroom", "64MiB"));
  CHECK(glake_malloc(194 * kMiB, 0, nullptr) == nullptr);
  OK(glake_free(glake_malloc(192 * kMiB, 0, nullptr)));
  OK(glake_shutdown());
  OK(glake_configure("headroom", ""));
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
