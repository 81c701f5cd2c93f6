// Tests private pools. Their memory serves no other heap, one limit holds for all heaps, and a pool
// lives as long as its users. Also tests the flags of pools.
#include <memory>
#include <thread>

#include "harness.h"

namespace {

using test::kGranule;
using test::kKiB;
using test::kMiB;

constexpr glake_pool kPool{3, 0}, kOther{0, 7};

void start(const char* limit = "64MiB") {
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", limit}});
}

void finish() {
  OK(glake_check(0));
  OK(glake_shutdown());
  test::check_nothing_left();
}

void* get(size_t bytes, glake_pool pool, void* stream = nullptr) {
  void* ptr = glake_pool_malloc(bytes, 0, stream, pool);
  CHECK(ptr != nullptr && reinterpret_cast<uintptr_t>(ptr) % 512 == 0);
  return ptr;
}

int64_t reserved(const char* pool) {
  return test::stat(std::string("glake.pool.") + pool + ".reserved_bytes");
}
bool known(const char* pool) {
  return test::stats().find(std::string("glake.pool.") + pool + ".") != std::string::npos;
}

TEST(memory_stays_with_its_pool) {
  test::running() = "memory stays with its pool";
  start();
  OK(glake_pool_retain(0, kPool));
  void* a = get(5 * kMiB, kPool);
  void* small = get(1000, kPool);
  size_t bytes = 0;
  int device = -1;
  OK(glake_block_info(a, &bytes, &device, nullptr));
  CHECK(bytes == 5 * kMiB && device == 0);
  CHECK(reserved("3.0") == static_cast<int64_t>(4 * kGranule));
  CHECK(test::stat("reserved_bytes.all.current") == static_cast<int64_t>(4 * kGranule));
  test::check_books({{a, 5 * kMiB, 0}, {small, 1000, 0}});
  OK(glake_free(a));
  OK(glake_free(small));
  GIVES(GLAKE_INVALID_POINTER, glake_free(a));
  // Free memory of the pool serves neither the device's own requests nor another pool's.
  void* own = glake_malloc(5 * kMiB, 0, nullptr);
  void* other = get(5 * kMiB, kOther);
  CHECK(own != a && other != a);
  CHECK(get(5 * kMiB, kPool) == a && get(1000, kPool) == small);
  CHECK(reserved("3.0") == static_cast<int64_t>(4 * kGranule));
  CHECK(reserved("0.7") == static_cast<int64_t>(3 * kGranule));
  for (void* ptr : {a, small, own, other}) OK(glake_free(ptr));
  OK(glake_pool_release(0, kPool));
  finish();
}

TEST(users_and_life) {
  test::running() = "users and life";
  start();
  CHECK(glake_pool_uses(0, kPool) == 0);
  OK(glake_pool_retain(0, kPool));
  OK(glake_pool_retain(0, kPool));
  CHECK(glake_pool_uses(0, kPool) == 2);
  void* a = get(6 * kMiB, kPool);
  void* b = get(6 * kMiB, kPool);
  OK(glake_pool_release(0, kPool));
  OK(glake_free(a));
  OK(glake_empty_cache(0));  // in use: keeps its memory
  CHECK(reserved("3.0") == static_cast<int64_t>(12 * kMiB));
  OK(glake_pool_empty_cache(0, kPool));  // asked for by name, and no graph has captured it
  CHECK(reserved("3.0") == static_cast<int64_t>(6 * kMiB));
  OK(glake_pool_release(0, kPool));
  CHECK(glake_pool_uses(0, kPool) == 0);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_release(0, kPool));
  OK(glake_check(0));
  OK(glake_free(b));  // it outlived the pool's users
  CHECK(known("3.0"));
  OK(glake_empty_cache(0));
  CHECK(!known("3.0") && test::stat("glake.physical_bytes") == 0);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_release(0, kPool));
  OK(glake_pool_empty_cache(0, kPool));
  // The next pool has the ended one's addresses: no reservation is made for it.
  int64_t reservations = simcuda_calls("cuMemAddressReserve");
  CHECK(get(6 * kMiB, kOther) != nullptr);  // the request makes the pool, without a user
  CHECK(simcuda_calls("cuMemAddressReserve") == reservations);
  CHECK(glake_pool_uses(0, kOther) == 0);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
  OK(glake_free(a));
  finish();
}

TEST(bad_input) {
  test::running() = "bad input";
  start();
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_retain(0, {0, 0}));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_release(0, kPool));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_set_flags(0, kPool, GLAKE_POOL_NO_SPLIT));
  OK(glake_pool_set_flags(0, kPool, 0));
  OK(glake_pool_retain(0, kPool));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_set_flags(0, kPool, 8));
  GIVES(GLAKE_INVALID_DEVICE, glake_pool_retain(9, kPool));
  CHECK(glake_pool_uses(9, kPool) == -GLAKE_INVALID_DEVICE);
  CHECK(glake_pool_malloc(0, 0, nullptr, kPool) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  CHECK(glake_pool_malloc(1, 9, nullptr, kPool) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_DEVICE);
  void* own = glake_pool_malloc(3 * kMiB, 0, nullptr, {0, 0});  // the device's own memory
  CHECK(own != nullptr && reserved("3.0") == 0);
  OK(glake_free(own));
  OK(glake_pool_empty_cache(0, {0, 0}));
  CHECK(test::stat("glake.physical_bytes") == 0);
  finish();  // a pool with users does not keep the device open
}

TEST(one_limit_for_all) {
  test::running() = "one limit for all";
  start("32MiB");
  OK(glake_pool_retain(0, kPool));
  OK(glake_pool_retain(0, kOther));
  void* a = get(16 * kMiB, kPool);
  OK(glake_free(a));
  // A pool in use keeps its memory, and the text says which pool has it.
  CHECK(glake_malloc(20 * kMiB, 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
  CHECK_TEXT(test::last_error().find(
                 "private pool {3, 0} holds 16.00 MiB (16.00 MiB idle, users") != std::string::npos,
             test::last_error());
  CHECK(glake_pool_malloc(20 * kMiB, 0, nullptr, kOther) == nullptr);
  CHECK(reserved("3.0") == static_cast<int64_t>(16 * kMiB));
  // The memory of a pool without users goes back, for a request of the device's heap or of another
  // pool.
  OK(glake_pool_release(0, kPool));
  void* own = glake_malloc(20 * kMiB, 0, nullptr);
  CHECK(own != nullptr);
  OK(glake_free(own));
  void* other = get(28 * kMiB, kOther);  // the device's own free memory goes back for a pool
  CHECK(test::stat("glake.physical_bytes") <= static_cast<int64_t>(32 * kMiB));
  OK(glake_free(other));
  OK(glake_pool_release(0, kOther));
  finish();
}

// A pool holds memory that is not live, so the device's own heap stitches before it grows. A
// request that is refused does not change that, however large it was.
TEST(a_refused_request_changes_no_growth) {
  for (const bool refused : {false, true}) {
    test::running() = refused ? "growth after a refusal" : "growth without a refusal";
    start("128MiB");
    OK(glake_pool_retain(0, kPool));
    void* theirs = get(48 * kMiB, kPool);
    OK(glake_free(theirs));
    std::vector<void*> own;
    for (int i = 0; i < 4; ++i) own.push_back(glake_malloc(4 * kMiB, 0, nullptr));
    for (const size_t i : {0, 2}) OK(glake_free(own[i]));
    if (refused) CHECK(glake_malloc(size_t{1} << 40, 0, nullptr) == nullptr);
    const int64_t held = test::stat("reserved_bytes.all.current");
    const int64_t stitches = test::stat("glake.stitches");
    void* stitched = glake_malloc(8 * kMiB, 0, nullptr);
    CHECK(stitched != nullptr && test::stat("glake.stitches") == stitches + 1);
    CHECK(test::stat("reserved_bytes.all.current") == held);
    for (void* block : {own[1], own[3], stitched}) OK(glake_free(block));
    OK(glake_pool_release(0, kPool));
    finish();
  }
}

TEST(use_on_oom) {
  test::running() = "use on oom";
  start("32MiB");
  OK(glake_pool_retain(0, kPool));
  OK(glake_pool_set_flags(0, kPool, GLAKE_POOL_USE_ON_OOM));
  void* held = get(4 * kMiB, kPool);
  void* a = get(20 * kMiB, kPool);
  OK(glake_free(a));
  void* own = glake_malloc(8 * kMiB, 0, nullptr);
  void* borrowed = glake_malloc(16 * kMiB, 0, nullptr);
  CHECK(borrowed == a && reserved("3.0") == static_cast<int64_t>(24 * kMiB));
  OK(glake_check(0));
  CHECK(glake_malloc(16 * kMiB, 0, nullptr) == nullptr);
  OK(glake_free(borrowed));
  CHECK(get(20 * kMiB, kPool) == a);  // it came back to the pool
  OK(glake_free(a));
  OK(glake_pool_set_flags(0, kPool, 0));
  CHECK(glake_malloc(16 * kMiB, 0, nullptr) == nullptr);
  for (void* ptr : {held, own}) OK(glake_free(ptr));
  finish();
}

TEST(no_split) {
  test::running() = "no split";
  start();
  OK(glake_pool_retain(0, kPool));
  OK(glake_pool_set_flags(0, kPool, GLAKE_POOL_NO_SPLIT));
  void* big = get(9 * kMiB, kPool);
  void* small = get(1000, kPool);
  CHECK(test::stat("allocated_bytes.all.current") == static_cast<int64_t>(6 * kGranule));
  OK(glake_free(big));
  OK(glake_check(0));
  GIVES(GLAKE_INVALID_POINTER, glake_free(big));
  void* part = get(3 * kMiB, kPool);  // whole: all of the 10 MiB
  CHECK(part == big && reserved("3.0") == static_cast<int64_t>(6 * kGranule));
  void* next = get(3 * kMiB, kPool);
  CHECK(next != big && reserved("3.0") == static_cast<int64_t>(8 * kGranule));
  OK(glake_free(part));
  OK(glake_free(next));
  CHECK(get(3 * kMiB, kPool) == next);  // the smallest block that is large enough
  CHECK(test::stat("requested_bytes.all.current") == static_cast<int64_t>(3 * kMiB + 1000));
  OK(glake_free(next));
  OK(glake_free(small));
  OK(glake_check(0));
  OK(glake_pool_empty_cache(0, kPool));
  CHECK(reserved("3.0") == 0);
  OK(glake_pool_release(0, kPool));
  finish();
}

// If no graph has captured a pool, its memory moves between streams like memory of the device's own
// heap.
void streams_share_an_eager_pool(unsigned flags) {
  test::running() = "streams share an eager pool";
  test::fresh_simulator({{"phantom", "1"}, {"complete_after", "-1"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", "8MiB"}});
  auto context = std::make_unique<test::CurrentContext>();
  CUstream s = nullptr;
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  OK(glake_pool_retain(0, kPool));
  OK(glake_pool_set_flags(0, kPool, flags));
  void* a = get(8 * kMiB, kPool);
  CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(a), 1, 8 * kMiB, nullptr));
  OK(glake_free(a));
  int64_t waits = simcuda_calls("cuStreamWaitEvent");
  CHECK(get(8 * kMiB, kPool, s) == a);
  CHECK(simcuda_calls("cuStreamWaitEvent") == waits + 1);
  OK(glake_free(a));
  OK(glake_pool_release(0, kPool));
  OK(glake_shutdown());
  test::end_stream(s);
  context.reset();
  test::check_nothing_left();
}

TEST(peers_reach_pools) {
  test::running() = "peers reach pools";
  test::fresh_simulator({{"memory", "64MiB"}, {"devices", "2"}});
  test::configure({{"driver", "sim"}});
  void* before = get(3 * kMiB, kPool);
  OK(glake_enable_peer_access(0, 1));
  void* after = get(9 * kMiB, kPool);
  {
    test::CurrentContext context(1);
    for (void* ptr : {before, after}) {
      CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(ptr), 5, 3 * kMiB, nullptr));
    }
    CU(cuCtxSynchronize());
  }
  CHECK_TEXT(test::violations() == "[]", test::violations());
  OK(glake_free(before));
  OK(glake_free(after));
  finish();
}

TEST(dozens) {
  test::running() = "dozens of pools";
  start("256MiB");
  std::vector<void*> blocks;
  for (uint64_t i = 1; i <= 48; ++i) {
    OK(glake_pool_retain(0, {i, 1}));
    blocks.push_back(get(1000, {i, 1}));
    blocks.push_back(get(2 * kMiB, {i, 1}));
  }
  OK(glake_check(0));
  for (void* ptr : blocks) OK(glake_free(ptr));
  for (uint64_t i = 1; i <= 48; ++i) OK(glake_pool_release(0, {i, 1}));
  OK(glake_empty_cache(0));
  CHECK(test::stat("glake.physical_bytes") == 0);
  finish();
}

TEST(threads) {
  test::running() = "threads on pools";
  start("256MiB");
  std::vector<std::thread> workers;
  for (uint64_t t = 0; t < 4; ++t) {
    workers.emplace_back([t] {
      test::Dice dice(t);
      const glake_pool mine{t % 3, 5};
      std::vector<void*> held;
      OK(glake_pool_retain(0, mine));
      for (int i = 0; i < 2000 / test::kSlowdown; ++i) {
        if (held.size() < 6 && dice.chance(60)) {
          held.push_back(get(dice(1, dice.chance(50) ? kMiB : 5 * kMiB), mine));
        } else if (!held.empty()) {
          OK(glake_free(held.back()));
          held.pop_back();
        }
        if (i % 256 == 255) OK(glake_pool_empty_cache(0, mine));
        if (i % 512 == 100) OK(glake_empty_cache(0));
      }
      for (void* ptr : held) OK(glake_free(ptr));
      OK(glake_pool_release(0, mine));
    });
  }
  for (std::thread& worker : workers) worker.join();
  finish();
}

TEST(streams_share_a_pool) { streams_share_an_eager_pool(0); }
TEST(streams_share_a_pool_of_whole_blocks) { streams_share_an_eager_pool(GLAKE_POOL_NO_SPLIT); }

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
