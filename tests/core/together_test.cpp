// Tests private pools, contiguous blocks, pins, shares, debug modes and watching together. What
// each feature promises alone must hold beside the others.
#include <memory>

#include "harness.h"

using test::kKiB;
using test::kMiB;
using test::stat;

namespace {

constexpr glake_pool kPool{1, 0};

void start(const test::Options& options = {{"limit", "96MiB"}}) {
  test::fresh_simulator({{"memory", "256MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}});
  test::configure(options);
}

void finish() {
  OK(glake_check(0));
  OK(glake_history(0, GLAKE_CONTEXT_NEVER, 1));
  OK(glake_shutdown());
  test::check_nothing_left();
  OK(glake_configure("debug", "none"));
}

void* get(size_t bytes) {
  void* ptr = glake_malloc(bytes, 0, nullptr);
  CHECK(ptr != nullptr);
  return ptr;
}
void* get_from_pool(size_t bytes, CUstream stream = nullptr) {
  void* ptr = glake_pool_malloc(bytes, 0, stream, kPool);
  CHECK(ptr != nullptr);
  return ptr;
}
void* get_whole(size_t bytes, int kind) {
  void* ptr = glake_malloc_contiguous(bytes, 0, nullptr, kind);
  CHECK(ptr != nullptr);
  return ptr;
}

std::vector<glake_event> events(int action) {
  struct Wanted {
    int action;
    std::vector<glake_event> found;
  } wanted{action, {}};
  OK(glake_visit_history(0, &wanted, [](void* self, const glake_event* event) {
    auto* to = static_cast<Wanted*>(self);
    if (event->action == to->action) to->found.push_back(*event);
  }));
  return wanted.found;
}
bool same(const glake_event& event, void* ptr, size_t bytes) {
  return event.address == reinterpret_cast<uint64_t>(ptr) && event.bytes == bytes;
}

// Sums over a snapshot for four kinds of segments: {of the device's heap, of the pool, contiguous
// VMM, contiguous legacy}.
struct Sums {
  int64_t bytes[4] = {}, active[4] = {}, segments[4] = {};
  int64_t all() const { return bytes[0] + bytes[1] + bytes[2] + bytes[3]; }
  int64_t all_active() const { return active[0] + active[1] + active[2] + active[3]; }
  int now = 0;
  uint64_t at = 0;
};

Sums snapshot() {
  Sums sums;
  OK(glake_visit_memory(
      0, &sums,
      [](void* self, const glake_segment_info* s) {
        auto* to = static_cast<Sums*>(self);
        to->now = s->kind != GLAKE_STITCHED ? 1 + s->kind : s->pool.first != 0 ? 1 : 0;
        CHECK(s->kind == GLAKE_STITCHED || s->pool.first == 0);
        to->bytes[to->now] += static_cast<int64_t>(s->bytes);
        ++to->segments[to->now];
        to->at = s->address;
      },
      [](void* self, const glake_block_record* b) {
        auto* to = static_cast<Sums*>(self);
        CHECK(b->address == to->at);  // without a gap
        to->at += b->bytes;
        if (b->state == GLAKE_ACTIVE) to->active[to->now] += static_cast<int64_t>(b->bytes);
      }));
  CHECK(sums.all() == stat("reserved_bytes.all.current"));
  CHECK(sums.all_active() == stat("allocated_bytes.all.current"));
  CHECK(sums.all() + stat("glake.owed_bytes") == stat("glake.physical_bytes"));
  return sums;
}

TEST(every_kind_is_in_the_snapshot) {
  test::running() = "every kind is in the snapshot";
  start();
  OK(glake_history(1000, GLAKE_CONTEXT_NEVER, 1));
  OK(glake_pool_retain(0, kPool));
  void* own = get(3 * kMiB);
  void* small = get(700);
  void* pooled = get_from_pool(5 * kMiB);
  void* vmm = get_whole(5 * kMiB, GLAKE_CONTIGUOUS_VMM);
  void* legacy = get_whole(2 * kMiB, GLAKE_CONTIGUOUS_LEGACY);
  std::vector<glake_event> made = events(GLAKE_SEGMENT_ALLOC);
  CHECK(made.size() == 2 && same(made[0], vmm, 6 * kMiB) && same(made[1], legacy, 2 * kMiB));
  Sums sums = snapshot();
  CHECK(sums.active[0] == static_cast<int64_t>(3 * kMiB + 1024));
  CHECK(sums.active[1] == static_cast<int64_t>(5 * kMiB));
  CHECK(sums.bytes[2] == static_cast<int64_t>(6 * kMiB) && sums.segments[2] == 1);
  CHECK(sums.active[2] == static_cast<int64_t>(5 * kMiB));
  CHECK(sums.bytes[3] == static_cast<int64_t>(2 * kMiB) && sums.active[3] == sums.bytes[3]);
  OK(glake_check(0));
  for (void* ptr : {own, small, pooled, vmm, legacy}) OK(glake_free(ptr));
  sums = snapshot();
  CHECK(sums.all_active() == 0 && sums.bytes[2] != 0 && sums.bytes[3] != 0);
  CHECK(events(GLAKE_SEGMENT_FREE).empty());  // kept
  OK(glake_empty_cache(0));
  std::vector<glake_event> gone = events(GLAKE_SEGMENT_FREE);
  CHECK(gone.size() == 2 && same(gone[0], vmm, 6 * kMiB) && same(gone[1], legacy, 2 * kMiB));
  sums = snapshot();
  CHECK(sums.bytes[0] == 0 && sums.bytes[1] != 0 && sums.bytes[2] == 0 && sums.bytes[3] == 0);
  OK(glake_pool_release(0, kPool));
  finish();
}

// Each free completes, however many streams are recorded.
TEST(a_contiguous_free_completes) {
  test::running() = "a contiguous free completes";
  start();
  auto context = std::make_unique<test::CurrentContext>();
  CUstream streams[7];
  for (CUstream& s : streams) CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  OK(glake_history(1000, GLAKE_CONTEXT_NEVER, 1));
  void* vmm = get_whole(2 * kMiB, GLAKE_CONTIGUOUS_VMM);
  for (CUstream s : streams) OK(glake_record_stream(vmm, s));
  OK(glake_free(vmm));
  CHECK(events(GLAKE_FREE_REQUESTED).size() == 1 && events(GLAKE_FREE_COMPLETED).size() == 1);
  for (CUstream s : streams) test::end_stream(s);
  context.reset();
  finish();
}

// The frees and allocations of a restore are recorded as events. The tags and contexts of its
// blocks are set again.
TEST(a_restore_is_watched) {
  test::running() = "a restore is watched";
  start();
  OK(glake_pool_retain(0, kPool));
  OK(glake_history(1000, GLAKE_CONTEXT_NEVER, 1));
  void* a = get_from_pool(3 * kMiB + 100);
  glake_checkpoint* then = glake_pool_checkpoint(0, kPool);
  OK(glake_free(a));
  void* b = get_from_pool(2 * kMiB);
  OK(glake_history(1000, GLAKE_CONTEXT_NEVER, 1));
  glake_set_tag("restored");
  OK(glake_pool_restore(then, nullptr, nullptr, nullptr));
  glake_set_tag(nullptr);
  std::vector<glake_event> freed = events(GLAKE_FREE_REQUESTED);
  std::vector<glake_event> allocated = events(GLAKE_ALLOC);
  CHECK(freed.size() == 1 && same(freed[0], b, 2 * kMiB) && freed[0].pool.first == 1);
  CHECK(events(GLAKE_FREE_COMPLETED).size() == 1);
  CHECK(allocated.size() == 1 && same(allocated[0], a, 3 * kMiB + 100));
  CHECK(allocated[0].pool.first == 1 && std::string(allocated[0].tag) == "restored");
  Sums sums = snapshot();
  CHECK(sums.active[1] == stat("allocated_bytes.all.current"));
  glake_checkpoint_free(then);
  OK(glake_free(a));
  OK(glake_pool_release(0, kPool));
  finish();
}

// Once a restore has freed a shared block, no process can open it any more.
TEST(a_restore_ends_shares) {
  test::running() = "a restore ends shares";
  start();
  OK(glake_pool_retain(0, kPool));
  glake_checkpoint* none = glake_pool_checkpoint(0, kPool);
  void* a = get_from_pool(3 * kMiB);
  char text[600];
  CHECK(glake_ipc_share(a, text, sizeof text) != 0);
  CHECK(stat("glake.shared_blocks") == 1);
  OK(glake_pool_restore(none, nullptr, nullptr, nullptr));
  CHECK(stat("glake.shared_blocks") == 0);
  glake_checkpoint_free(none);
  OK(glake_pool_release(0, kPool));
  finish();
}

// With guards a caller's pointer is not the block's first byte.
TEST(pins_and_shares_take_the_callers_pointer) {
  test::running() = "pins and shares with guards";
  start({{"limit", "96MiB"}, {"debug", "guard"}});
  for (size_t bytes : {size_t{1000}, 5 * kMiB}) {
    void* ptr = get(bytes);
    OK(glake_pin(ptr));
    OK(glake_pin(ptr));
    CHECK(stat("glake.pinned_bytes") != 0);
    GIVES(GLAKE_INVALID_POINTER, glake_unpin(static_cast<char*>(ptr) - 512));
    OK(glake_unpin(ptr));
    char first[600], second[600];
    CHECK(glake_ipc_share(ptr, first, sizeof first) != 0);
    CHECK(glake_ipc_share(ptr, second, sizeof second) != 0 && std::string(first) == second);
    OK(glake_free(ptr));
    CHECK(stat("glake.shared_blocks") == 0);  // at once: no thread keeps it
    OK(glake_empty_cache(0));
    CHECK(stat("glake.pinned_bytes") != 0);
    OK(glake_unpin(ptr));
    GIVES(GLAKE_INVALID_POINTER, glake_unpin(ptr));
    CHECK(stat("glake.pinned_bytes") == 0);
  }
  finish();
}

// Memory that the driver refuses to take back is in no segment and not among reserved bytes. It has
// a statistic of its own until the driver takes it.
TEST(refused_releases_are_owed) {
  test::running() = "refused releases are owed";
  start();
  for (int kind : {GLAKE_STITCHED, GLAKE_CONTIGUOUS_VMM, GLAKE_CONTIGUOUS_LEGACY}) {
    void* ptr = glake_malloc_contiguous(4 * kMiB, 0, nullptr, kind);
    const int64_t held = stat("glake.physical_bytes");
    CHECK(ptr != nullptr && held >= static_cast<int64_t>(4 * kMiB));
    OK(glake_free(ptr));
    const bool legacy = kind == GLAKE_CONTIGUOUS_LEGACY;
    CHECK(simcuda_fail(legacy ? "cuMemFree" : "cuMemRelease", 1, CUDA_ERROR_UNKNOWN, -1) == 0);
    GIVES(GLAKE_MEMORY_OWED, glake_empty_cache(0));
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
    CHECK(stat("glake.owed_bytes") == held && stat("glake.physical_bytes") == held);
    CHECK(stat("reserved_bytes.all.current") == 0);
    CHECK(test::number_in(test::ledger(), "used_bytes") == held);
    snapshot();
    OK(glake_check(0));
    // The next contiguous request has the driver take back both kinds of owed memory.
    void* next = get_whole(2 * kMiB, GLAKE_CONTIGUOUS_VMM);
    CHECK(stat("glake.owed_bytes") == 0);
    OK(glake_free(next));
    OK(glake_empty_cache(0));
    CHECK(stat("glake.physical_bytes") == 0);
  }
  finish();
}

// Events do not outlive their stream for long. Once a stream is destroyed and the device
// synchronised, other streams use its events, and anybody gets its memory.
TEST(events_leave_with_their_stream) {
  test::running() = "events leave with their stream";
  start();
  auto context = std::make_unique<test::CurrentContext>();
  int64_t events_after_first = 0;
  for (int round = 0; round < 12; ++round) {
    CUstream s = nullptr;
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    void* other = get(3 * kMiB);
    void* mine = glake_malloc(5 * kMiB, 0, s);
    CHECK(mine != nullptr);
    OK(glake_record_stream(other, s));
    CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(mine), 1, 5 * kMiB, s));
    OK(glake_free(mine));
    OK(glake_free(get(5 * kMiB)));  // another stream wants it, so s is marked
    OK(glake_free(other));
    test::end_stream(s);
    OK(glake_empty_cache(0));
    CHECK(stat("glake.physical_bytes") == 0);  // nothing waits for s
    const int64_t now = test::number_in(test::ledger(), "events");
    if (round == 0) events_after_first = now;
    CHECK_TEXT(now == events_after_first, std::to_string(now));
    OK(glake_check(0));
  }
  CHECK(events_after_first > 0 && test::violations() == "[]");
  context.reset();
  finish();
}

// No other stream gets a freed contiguous block while there is room for one more. Its own stream
// gets it only after recorded streams. Both hold for shared blocks too.
TEST(chunks_keep_their_tickets) {
  test::running() = "chunks keep their tickets";
  start();
  auto context = std::make_unique<test::CurrentContext>();
  CUstream s[2];
  for (CUstream& stream : s) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (bool shared : {false, true}) {
    for (bool recorded : {false, true}) {
      void* a = glake_malloc_contiguous(4 * kMiB, 0, s[0], GLAKE_CONTIGUOUS_VMM);
      char text[600];
      if (shared) CHECK(glake_ipc_share(a, text, sizeof text) != 0);
      if (recorded) OK(glake_record_stream(a, s[1]));
      OK(glake_free(a));
      void* b = glake_malloc_contiguous(4 * kMiB, 0, s[recorded ? 0 : 1], GLAKE_CONTIGUOUS_VMM);
      CHECK(b != nullptr && b != a);
      OK(glake_free(b));
      OK(glake_empty_cache(0));
    }
  }
  for (CUstream stream : s) test::end_stream(stream);
  context.reset();
  finish();
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
