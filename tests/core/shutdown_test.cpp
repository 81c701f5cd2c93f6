// glake_shutdown() is refused half way. Threads that remember a device must not use it after it is
// closed. The next try of the shutdown succeeds.
#include <thread>

#include "harness.h"

namespace {

void start() {
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}, {"devices", "2"}});
  test::configure({{"driver", "sim"}});
}

void* get(size_t bytes, int device) {
  void* ptr = glake_malloc(bytes, device, nullptr);
  CHECK(ptr != nullptr);
  return ptr;
}

void finish() {
  OK(glake_shutdown());
  for (int device = 0; device < 2; ++device) test::check_nothing_left(device);
}

// Only device 1 has live blocks. All of glake stays usable.
TEST(refused_while_a_later_device_has_blocks) {
  test::running() = "live blocks on device 1";
  start();
  OK(glake_free(get(100, 0)));
  void* live = get(5 * test::kMiB, 1);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
  CHECK(test::last_error().find("live") != std::string::npos);
  std::vector<test::Held> held{{live, 5 * test::kMiB, 1}};
  test::check_books(held, 1);
  for (int i = 0; i < 100; ++i) {
    void* ptr = get(100 + static_cast<size_t>(i) * 100000, 0);
    OK(glake_free(ptr));
  }
  OK(glake_check(0));
  OK(glake_check(1));
  OK(glake_free(live));
  finish();
}

// Nothing is left to free, but a capture may still use what was freed.
TEST(refused_while_a_capture_may_use_a_freed_block) {
  test::running() = "shutdown in a capture";
  constexpr glake_pool kPool{1, 0};
  start();
  {
    test::CurrentContext context(0);
    CUstream stream = nullptr;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(glake_pool_retain(0, kPool));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    void* block = glake_pool_malloc(test::kMiB, 0, stream, kPool);
    CHECK(block != nullptr);
    OK(glake_record_stream(block, nullptr));
    OK(glake_free(block));
    GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
    const std::string said = test::last_error();
    CHECK_TEXT(said.find("1 freed block that a capture may use") != std::string::npos, said);
    CUgraph graph = nullptr;
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));
    test::end_stream(stream);
  }
  OK(glake_pool_release(0, kPool));
  finish();
}

// A block of the device's own heap is freed, and kept for its stream at once. A shutdown is refused
// while a capture may use it.
TEST(refused_while_a_capture_may_use_cached_memory) {
  test::running() = "shutdown in a capture, cached memory";
  start();
  {
    test::CurrentContext context(0);
    CUstream stream = nullptr;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    void* block = glake_malloc(4 * test::kMiB, 0, stream);
    CHECK(block != nullptr);
    OK(glake_free(block));
    GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
    const std::string said = test::last_error();
    CHECK_TEXT(said.find("cuda:0 still has memory that a capture may use") != std::string::npos,
               said);
    CUgraph graph = nullptr;
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));
    test::end_stream(stream);
  }
  finish();
}

// The driver refuses while device 1 is being closed.
TEST(refused_by_the_driver_at_a_later_device) {
  for (const char* symbol : {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuEventDestroy",
                             "cuDevicePrimaryCtxRelease", "cuCtxSynchronize"}) {
    // The second call belongs to device 1 or to a later part of device 0's end.
    for (int k = 1; k <= 6; ++k) {
      test::running() = std::string("shutdown with refusing ") + symbol + " " + std::to_string(k);
      start();
      void* on[2] = {get(7 * test::kMiB, 0), get(7 * test::kMiB, 1)};
      for (void* ptr : on) OK(glake_free(ptr));
      CHECK(simcuda_fail(symbol, k, CUDA_ERROR_UNKNOWN, 1) == 0);
      if (glake_shutdown() != GLAKE_OK) {
        CHECK(glake_last_error(nullptr, 0) == GLAKE_DRIVER_ERROR);
        CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
        // A closed device may be opened again. A device that is half closed gives an error.
        for (int device = 0; device < 2; ++device) {
          void* ptr = glake_malloc(3 * test::kMiB, device, nullptr);
          if (ptr != nullptr) {
            OK(glake_free(ptr));
            OK(glake_check(device));
          } else {
            CHECK(glake_last_error(nullptr, 0) == GLAKE_DRIVER_ERROR);
          }
        }
      }
      CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
      finish();
    }
  }
}

// A thread that outlives a shutdown starts anew with the next use.
TEST(threads_outlive_a_shutdown) {
  test::running() = "threads outlive a shutdown";
  start();
  OK(glake_free(get(1000, 0)));
  int step = 0;
  std::thread other([&] {
    OK(glake_free(get(1000, 0)));
    __atomic_store_n(&step, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&step, __ATOMIC_ACQUIRE) != 2) std::this_thread::yield();
    OK(glake_free(get(1000, 0)));
  });
  while (__atomic_load_n(&step, __ATOMIC_ACQUIRE) != 1) std::this_thread::yield();
  finish();
  start();
  __atomic_store_n(&step, 2, __ATOMIC_RELEASE);
  other.join();
  OK(glake_check(0));
  finish();
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
