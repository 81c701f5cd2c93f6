// Pinned granules stay where they are until the last unpin, even if the block is freed. They are
// not stitched, evicted or trimmed.
#include "harness.h"

using test::kGranule;
using test::kMiB;
using test::stat;

namespace {

struct Session {
  explicit Session(const test::Options& glake) {
    test::fresh_simulator({{"memory", "64MiB"}, {"devices", "1"}});
    test::configure({{"driver", "sim"}});
    test::configure(glake);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    OK(glake_check(0));
    OK(glake_shutdown());
    test::check_nothing_left();
  }
};

void* get(size_t bytes) {
  void* ptr = glake_malloc(bytes, 0, nullptr);
  CHECK(ptr != nullptr);
  return ptr;
}
CUdeviceptr at(void* ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }

// The driver's handle of the physical memory behind an address. A registration refers to that
// memory. 0 if nothing is mapped there.
uint64_t memory_at(void* ptr) {
  test::CurrentContext context;
  CUmemGenericAllocationHandle handle = 0;
  if (cuMemRetainAllocationHandle(&handle, ptr) != CUDA_SUCCESS) return 0;
  CU(cuMemRelease(handle));
  return handle;
}
void write_byte(void* ptr, unsigned char value) {
  test::CurrentContext context;
  CU(cuMemsetD8(at(ptr), value, 1));
}
unsigned char read_byte(void* ptr) {
  test::CurrentContext context;
  unsigned char value = 0;
  CU(cuMemcpyDtoH(&value, at(ptr), 1));
  return value;
}

TEST(kept_through_free_and_empty_cache) {
  test::running() = "kept through free and empty_cache";
  Session session(test::Options{{"limit", "32MiB"}});
  void* a = get(5 * kMiB);
  const uint64_t memory = memory_at(a);
  OK(glake_pin(a));
  OK(glake_pin(a));
  OK(glake_free(a));
  CHECK(stat("glake.pinned_bytes") == 6 * static_cast<int64_t>(kMiB));
  OK(glake_empty_cache(0));
  CHECK(memory_at(a) == memory);
  CHECK(stat("glake.physical_bytes") == 6 * static_cast<int64_t>(kMiB));
  OK(glake_check(0));
  OK(glake_unpin(a));
  OK(glake_empty_cache(0));
  CHECK(memory_at(a) == memory);  // pins nest
  OK(glake_unpin(a));
  GIVES(GLAKE_INVALID_POINTER, glake_unpin(a));
  GIVES(GLAKE_INVALID_POINTER, glake_pin(a));  // freed
  OK(glake_empty_cache(0));
  CHECK(memory_at(a) == 0);
  CHECK(stat("glake.physical_bytes") == 0);
}

// A pinned block's memory is used again at its address.
TEST(reused_in_place) {
  test::running() = "reused in place";
  Session session(test::Options{{"limit", "8MiB"}});
  void* a = get(6 * kMiB);
  OK(glake_pin(a));
  OK(glake_free(a));
  void* b = get(6 * kMiB);
  CHECK(b == a);
  OK(glake_pin(b));  // a later block at the same address
  OK(glake_free(b));
  void* c = get(8 * kMiB);
  CHECK(c == a);
  OK(glake_pin(c));  // a longer block: its last granule is pinned too
  CHECK(stat("glake.pinned_bytes") == 8 * static_cast<int64_t>(kMiB));
  OK(glake_check(0));
  OK(glake_free(c));
  for (int i = 0; i < 3; ++i) {
    CHECK(stat("glake.pinned_bytes") == 8 * static_cast<int64_t>(kMiB));
    OK(glake_unpin(a));
  }
  CHECK(stat("glake.pinned_bytes") == 0);
}

// Live blocks and holes take turns, two granules each. A larger request must be stitched of the
// holes.
TEST(never_stitched) {
  test::running() = "never stitched";
  Session session(test::Options{{"limit", "32MiB"}});
  void* blocks[8];
  for (void*& b : blocks) b = get(4 * kMiB);
  OK(glake_pin(blocks[0]));
  const uint64_t memory = memory_at(blocks[0]);
  for (int i = 0; i < 8; i += 2) OK(glake_free(blocks[i]));
  CHECK(glake_malloc(14 * kMiB, 0, nullptr) == nullptr);  // a pinned granule would be needed
  void* view = get(12 * kMiB);                            // the three other holes
  CHECK(stat("glake.stitches") == 1);
  CHECK(glake_malloc(4 * kMiB + 1, 0, nullptr) == nullptr);
  CHECK_TEXT(test::last_error().find("pinned for others") != std::string::npos, test::last_error());
  void* again = get(4 * kMiB);
  CHECK(again == blocks[0] && memory_at(again) == memory);
  OK(glake_free(again));
  OK(glake_free(view));
  void* other = get(12 * kMiB);
  CHECK(other == view);  // the same view serves, without the pinned granule
  OK(glake_unpin(blocks[0]));
  OK(glake_free(other));
  void* all = get(14 * kMiB);  // now they may all be taken
  OK(glake_check(0));
  OK(glake_free(all));
  for (int i = 1; i < 8; i += 2) OK(glake_free(blocks[i]));
}

// A pinned granule that a live block shares does not become the edge of a view either.
TEST(never_an_edge) {
  test::running() = "never an edge";
  Session session(test::Options{{"limit", "12MiB"}});
  void* a = get(3 * kMiB);
  void* b = get(3 * kMiB);
  void* c = get(3 * kMiB);
  void* d = get(3 * kMiB);
  OK(glake_pin(b));
  OK(glake_pin(d));
  OK(glake_free(a));
  OK(glake_free(c));
  // Free are two whole granules, half of a granule that b shares, and half of a granule that d
  // shares.
  CHECK(glake_malloc(5 * kMiB, 0, nullptr) == nullptr);
  OK(glake_unpin(d));
  void* joined = get(5 * kMiB);
  CHECK(stat("glake.edge_stitches") == 1);
  OK(glake_free(joined));
  OK(glake_unpin(b));
  OK(glake_free(b));
  OK(glake_free(d));
}

// A view through which a pinned block was reached stays mapped, whatever the budget.
TEST(views_stay) {
  test::running() = "views stay";
  Session session(test::Options{{"limit", "32MiB"}, {"view_budget", "1"}});
  void* blocks[8];
  for (void*& b : blocks) b = get(4 * kMiB);
  for (int i = 0; i < 8; i += 2) OK(glake_free(blocks[i]));
  void* view = get(14 * kMiB);
  CHECK(stat("glake.stitches") == 1);
  const uint64_t memory = memory_at(view);
  write_byte(view, 42);
  OK(glake_pin(view));
  OK(glake_free(view));
  OK(glake_empty_cache(0));
  CHECK(memory_at(view) == memory && read_byte(view) == 42);
  CHECK(stat("glake.views") == 1);
  OK(glake_check(0));
  for (int i = 1; i < 8; i += 2) OK(glake_free(blocks[i]));
  // Requests of other lengths make views that the budget has no room for.
  for (size_t mib : {9, 11, 13}) OK(glake_free(get(mib * kMiB)));
  OK(glake_empty_cache(0));
  CHECK(memory_at(view) == memory);
  // Its memory is reused through the same view.
  OK(glake_unpin(view));
  OK(glake_empty_cache(0));
  CHECK(memory_at(view) == 0 && stat("glake.views") == 0);
}

TEST(contiguous_chunks_stay) {
  test::running() = "contiguous chunks stay";
  Session session(test::Options{{"limit", "32MiB"}});
  for (int kind : {GLAKE_CONTIGUOUS_VMM, GLAKE_CONTIGUOUS_LEGACY}) {
    void* a = glake_malloc_contiguous(6 * kMiB, 0, nullptr, kind);
    OK(glake_pin(a));
    OK(glake_free(a));
    OK(glake_empty_cache(0));
    CHECK(stat("glake.contiguous_bytes") == 6 * static_cast<int64_t>(kMiB));
    CHECK(glake_malloc(30 * kMiB, 0, nullptr) == nullptr);  // not even under pressure
    void* b = glake_malloc_contiguous(6 * kMiB, 0, nullptr, kind);
    CHECK(b == a);
    OK(glake_free(b));
    OK(glake_unpin(a));
    OK(glake_empty_cache(0));
    CHECK(stat("glake.contiguous_bytes") == 0);
  }
}

TEST(refused) {
  test::running() = "refused";
  Session session(test::Options{{"limit", "32MiB"}});
  void* a = get(5 * kMiB);
  GIVES(GLAKE_INVALID_POINTER, glake_pin(nullptr));
  GIVES(GLAKE_INVALID_POINTER, glake_pin(static_cast<char*>(a) + 512));
  GIVES(GLAKE_INVALID_POINTER, glake_unpin(a));
  OK(glake_pin(a));
  OK(glake_free(a));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
  CHECK(test::last_error().find("glake_unpin") != std::string::npos);
  OK(glake_unpin(a));
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
