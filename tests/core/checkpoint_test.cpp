// Tests checkpoints of private pools (for torch's cudagraph trees). A restore brings back the
// blocks that were live, at their addresses, either all of them or none. Also tests allocation at a
// given address.
#include <memory>

#include "harness.h"

namespace {

using test::kGranule;
using test::kKiB;
using test::kMiB;

constexpr glake_pool kPool{1, 0};

void start(const char* limit = "64MiB") {
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", limit}});
  OK(glake_pool_retain(0, kPool));
}
void finish() {
  OK(glake_check(0));
  OK(glake_shutdown());
  test::check_nothing_left();
}
void* get(size_t bytes, void* stream = nullptr) {
  void* ptr = glake_pool_malloc(bytes, 0, stream, kPool);
  CHECK(ptr != nullptr);
  return ptr;
}

struct Log {
  std::vector<void*> freed;
  std::map<void*, size_t> allocated;
  static void on_free(void* self, void* ptr) { static_cast<Log*>(self)->freed.push_back(ptr); }
  static void on_allocate(void* self, void* ptr, size_t bytes, void*) {
    static_cast<Log*>(self)->allocated[ptr] = bytes;
  }
};

int restore(glake_checkpoint* then, Log* log) {
  return glake_pool_restore(then, log, &Log::on_free, &Log::on_allocate);
}

TEST(there_and_back) {
  test::running() = "there and back";
  start();
  void* own = glake_malloc(3 * kMiB, 0, nullptr);
  void* a = get(5 * kMiB);
  void* b = get(1000);
  void* c = get(700 * kKiB);
  void* d = get(3 * kMiB);
  OK(glake_free(b));
  glake_checkpoint* then = glake_pool_checkpoint(0, kPool);
  CHECK(then != nullptr);
  OK(glake_free(a));
  OK(glake_free(c));
  void* e = get(4 * kMiB);  // where a was
  void* f = get(512);
  CHECK(e == a);
  Log log;
  OK(restore(then, &log));
  CHECK(log.freed.size() == 3);  // d, e, f
  CHECK((log.allocated == std::map<void*, size_t>{{a, 5 * kMiB}, {c, 700 * kKiB}, {d, 3 * kMiB}}));
  test::check_books({{own, 3 * kMiB, 0}, {a, 5 * kMiB, 0}, {c, 700 * kKiB, 0}, {d, 3 * kMiB, 0}});
  OK(glake_check(0));
  if (f != c) GIVES(GLAKE_INVALID_POINTER, glake_free(f));
  // The same checkpoint is restored again, after everything was freed.
  for (void* ptr : {a, c, d}) OK(glake_free(ptr));
  Log again;
  OK(restore(then, &again));
  CHECK(again.freed.empty() && again.allocated == log.allocated);
  glake_checkpoint_free(then);
  for (void* ptr : {own, a, c, d}) OK(glake_free(ptr));
  finish();
}

// A stitched block comes back in its view. Captured views are kept for that.
TEST(views_come_back) {
  test::running() = "views come back";
  start("32MiB");
  auto context = std::make_unique<test::CurrentContext>();
  CUstream s = nullptr;
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  std::vector<void*> parts;
  for (int i = 0; i < 8; ++i) parts.push_back(get(4 * kMiB, s));
  for (size_t i = 0; i < parts.size(); i += 2) OK(glake_free(parts[i]));
  void* stitched = get(15 * kMiB, s);
  CHECK(test::stat("glake.views") == 0);  // the device's own heap has none
  glake_checkpoint* then = glake_pool_checkpoint(0, kPool);
  OK(glake_free(stitched));
  CHECK(glake_pool_malloc_at(stitched, 15 * kMiB, 0, nullptr, kPool) == nullptr);  // s has it
  for (size_t i = 0; i < parts.size(); i += 2) CHECK(get(4 * kMiB, s) == parts[i]);
  OK(glake_free(parts[1]));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(s, &graph));
  CU(cuGraphDestroy(graph));
  OK(glake_empty_cache(0));
  Log log;
  OK(restore(then, &log));
  CHECK(log.freed.size() == 7 && log.allocated.size() == 5 && log.allocated[stitched] == 15 * kMiB);
  OK(glake_check(0));
  glake_checkpoint_free(then);
  OK(glake_free(stitched));
  for (size_t i = 1; i < parts.size(); i += 2) OK(glake_free(parts[i]));
  OK(glake_pool_release(0, kPool));
  OK(glake_shutdown());
  test::end_stream(s);
  context.reset();
  test::check_nothing_left();
}

// Blocks that a restore frees or allocates during a capture stay with the graph.
TEST(restored_in_a_capture) {
  test::running() = "restored in a capture";
  start();
  auto context = std::make_unique<test::CurrentContext>();
  CUstream s = nullptr, other = nullptr;
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  void* a = get(4 * kMiB, s);
  glake_checkpoint* then = glake_pool_checkpoint(0, kPool);
  OK(glake_free(a));
  CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  Log log;
  OK(restore(then, &log));
  CHECK(log.allocated[a] == 4 * kMiB);
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(s, &graph));
  OK(glake_free(a));
  CU(cuCtxSynchronize());
  void* b = get(4 * kMiB, other);
  CHECK(b != a);
  CHECK(get(4 * kMiB, s) == a);
  glake_checkpoint_free(then);
  for (void* ptr : {a, b}) OK(glake_free(ptr));
  OK(glake_pool_release(0, kPool));
  OK(glake_shutdown());
  CU(cuGraphDestroy(graph));
  test::end_stream(other);
  test::end_stream(s);
  context.reset();
  test::check_nothing_left();
}

TEST(all_or_nothing) {
  test::running() = "all or nothing";
  start();
  void* a = get(4 * kMiB);
  void* b = get(6 * kMiB);
  void* c = get(300 * kKiB);
  glake_checkpoint* then = glake_pool_checkpoint(0, kPool);
  OK(glake_free(b));
  OK(glake_pool_empty_cache(0, kPool));  // no graph: b's memory goes back to the driver
  Log log;
  GIVES(GLAKE_INVALID_ARGUMENT, restore(then, &log));
  CHECK(log.freed.empty() && log.allocated.empty());
  test::check_books({{a, 4 * kMiB, 0}, {c, 300 * kKiB, 0}});
  OK(glake_check(0));
  void* again = get(6 * kMiB);
  CHECK(again == b);
  OK(restore(then, &log));
  CHECK(log.freed.size() == 3 && log.allocated.size() == 3);
  for (void* ptr : {a, b, c}) OK(glake_free(ptr));
  // After a shutdown the checkpoint cannot be restored any more.
  finish();
  test::configure({{"driver", "sim"}});
  OK(glake_pool_retain(0, kPool));
  GIVES(GLAKE_INVALID_ARGUMENT, restore(then, &log));
  glake_checkpoint_free(then);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_restore(nullptr, nullptr, nullptr, nullptr));
  CHECK(glake_pool_checkpoint(0, {7, 7}) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  glake_checkpoint_free(nullptr);
  finish();
}

TEST(at_an_address) {
  test::running() = "at an address";
  start();
  void* a = get(7 * kMiB);
  void* small = get(4096);
  auto at = [&](void* base, size_t offset) {
    return static_cast<void*>(static_cast<char*>(base) + offset);
  };
  auto take = [](void* ptr, size_t bytes, glake_pool pool = kPool) {
    return glake_pool_malloc_at(ptr, bytes, 0, nullptr, pool);
  };
  CHECK(take(a, 512) == nullptr);  // live
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  OK(glake_free(a));
  OK(glake_free(small));
  CHECK(take(at(a, 100), 512) == nullptr);  // not aligned
  CHECK(take(a, 9 * kMiB) == nullptr);      // beyond what is free
  CHECK(take(a, 512, {4, 4}) == nullptr);   // no such pool
  CHECK(take(&a, 512) == nullptr);          // not glake's
  CHECK(take(at(a, 512), 0) == nullptr);
  void* inside = at(a, kGranule + 1536);
  CHECK(take(inside, 1024) == inside);
  CHECK(take(a, 7 * kMiB) == nullptr);
  CHECK(take(a, kGranule + 1536) == a);
  void* tail = at(a, kGranule + 2560);
  CHECK(take(tail, 3 * kMiB) == tail);
  CHECK(take(at(small, 1024), 1024) == at(small, 1024));
  CHECK(test::stat("allocation.all.current") == 4);
  OK(glake_check(0));
  for (void* ptr : {inside, a, tail, at(small, 1024)}) OK(glake_free(ptr));
  OK(glake_check(0));
  CHECK(get(7 * kMiB) == a);
  OK(glake_free(a));
  finish();
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
