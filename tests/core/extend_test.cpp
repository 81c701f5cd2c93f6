// An idle view is cut and extended for a longer request. Only the granules that the request lacks
// are mapped, and no pending work uses the view. Whatever call the driver refuses, every block
// keeps its bytes, and the statistics are those of the blocks.
#include <memory>

#include "harness.h"

namespace {

using test::kGranule;
using test::kMiB;

constexpr size_t kPart = 16 * kMiB;

// Blocks with known bytes fill the limit, on real memory. There are holes between them, and an idle
// view over all holes. The last hole has just been taken by a block.
class Job {
 public:
  explicit Job(const char* what, bool crossing = true) {
    test::running() = what;
    test::fresh_simulator({{"memory", "256MiB"}, {"devices", "1"}});
    test::configure({{"driver", "sim"}, {"limit", crossing ? "132MiB" : "128MiB"}});
    context_ = std::make_unique<test::CurrentContext>();
    for (CUstream& stream : s) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (crossing) other_ = get(4 * kMiB, s[1]);
    for (void*& part : parts_) part = get(kPart);
    for (size_t i = 0; i < 8; i += 2) drop(parts_[i]);
    view = get(4 * kPart);
    CHECK(test::stat("glake.views") == 1);
    drop(view);
    if (crossing) turn();
    get(kPart);
  }
  ~Job() {
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
    check();
    for (const auto& [ptr, block] : blocks_) OK(glake_free(ptr));
    OK(glake_shutdown());
    for (CUstream stream : s) test::end_stream(stream);
    context_.reset();
    test::check_nothing_left();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Frees one more block. The view does not map its granules.
  void free_part() { drop(parts_[1]); }
  void raise_limit() { OK(glake_set_limit_fraction(0, 148. / 256)); }
  // Frees a block of another stream, and allocates it again there.
  void turn() {
    drop(other_);
    other_ = get(4 * kMiB, s[1]);
  }

  void* get(size_t bytes, CUstream on) {
    void* ptr = glake_malloc(bytes, 0, on);
    if (ptr == nullptr) return nullptr;
    blocks_[ptr] = {bytes, ++stamps_};
    for (size_t at = 0; at < bytes; at += kGranule) {
      CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(ptr) + at, stamps_, 512, on));
    }
    return ptr;
  }
  void* get(size_t bytes) { return get(bytes, s[0]); }
  void drop(void* ptr) {
    OK(glake_free(ptr));
    CHECK(blocks_.erase(ptr) == 1);
  }
  // Every block has its own bytes, and the books agree.
  void check() {
    CU(cuCtxSynchronize());
    CHECK_TEXT(test::violations() == "[]", test::violations());
    OK(glake_check(0));
    std::vector<test::Held> held;
    for (const auto& [ptr, block] : blocks_) {
      held.push_back({ptr, block.bytes, 0});
      for (size_t at = 0; at < block.bytes; at += kGranule) {
        uint8_t bytes[512];
        CU(cuMemcpyDtoH(bytes, reinterpret_cast<CUdeviceptr>(ptr) + at, sizeof bytes));
        for (uint8_t byte : bytes) CHECK(byte == block.stamp);
      }
    }
    test::check_books(held);
  }

  CUstream s[2] = {};
  void* view = nullptr;  // where it begins

 private:
  struct Block {
    size_t bytes;
    uint8_t stamp;
  };
  std::unique_ptr<test::CurrentContext> context_;
  void* parts_[8] = {};
  void* other_ = nullptr;
  std::map<void*, Block> blocks_;
  uint8_t stamps_ = 0;
};

struct Case {
  bool grows;  // a part as long as the last hole is new memory
  size_t bytes;
  int64_t maps;  // how many granules are mapped into the view, whose first three quarters are free
};
constexpr Case kCases[] = {{false, 4 * kPart, 8}, {true, 5 * kPart, 16}};

TEST(only_what_lacks_is_mapped) {
  for (const Case& c : kCases) {
    Job job("only what lacks is mapped");
    job.free_part();
    if (c.grows) job.raise_limit();
    CU(cuCtxSynchronize());
    auto maps = [] { return simcuda_calls("cuMemMap") - simcuda_calls("cuMemCreate"); };
    const int64_t maps_before = maps(), unmaps = simcuda_calls("cuMemUnmap");
    void* ptr = job.get(c.bytes);
    CHECK(ptr == job.view);
    CHECK(maps() == maps_before + c.maps && simcuda_calls("cuMemUnmap") == unmaps + 1);
    CHECK(test::stat("glake.views") == 1 && test::stat("glake.view_extensions") == 1);
    job.check();
    job.drop(ptr);
    CHECK(job.get(c.bytes) == ptr);  // the view is long enough now
    CHECK(maps() == maps_before + c.maps && simcuda_calls("cuMemUnmap") == unmaps + 1);
  }
}

// A view stays as it is if work on it has not run, if a block lies in it, or if one is pinned.
TEST(views_in_use_are_not_cut) {
  {
    Job job("work under way");
    job.free_part();
    const int64_t unmaps = simcuda_calls("cuMemUnmap");
    CHECK(job.get(4 * kPart) != job.view);
    CHECK(simcuda_calls("cuMemUnmap") == unmaps);
    job.check();
  }
  for (bool pinned : {false, true}) {
    Job job(pinned ? "a pin" : "a block");
    void* front = job.get(20 * kMiB);
    CHECK(front == job.view);
    if (pinned) {
      OK(glake_pin(front));
      job.drop(front);
      job.turn();
    }
    job.free_part();
    CU(cuCtxSynchronize());
    const int64_t unmaps = simcuda_calls("cuMemUnmap");
    // 22 granules are free and not pinned, 14 of them in the view.
    void* ptr = job.get(pinned ? 4 * kPart : 40 * kMiB);
    CHECK((ptr == nullptr) == pinned);
    CHECK(simcuda_calls("cuMemUnmap") == unmaps && test::stat("glake.view_extensions") == 0);
    job.check();
    if (pinned) {
      OK(glake_unpin(front));
      CHECK(job.get(4 * kPart) == job.view);
      job.check();
    }
  }
}

// No stream is marked until a mark would help. The next request then uses the mark.
TEST(one_stream_marks_when_it_helps) {
  Job job("one stream marks when it helps", false);
  job.free_part();
  CHECK(test::stat("glake.stream_marks") == 0);
  CHECK(simcuda_fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN, 1) == 0);  // the request maps nothing
  CHECK(job.get(4 * kPart) == nullptr);
  CHECK(test::stat("glake.stream_marks") == 1 && test::stat("glake.view_extensions") == 0);
  job.check();
  CHECK(job.get(4 * kPart) == job.view);
  CHECK(test::stat("glake.view_extensions") == 1);
}

// Makes one request while the k-th call fails. True if that call was made.
bool refused(const Case& c, int64_t k, int64_t times) {
  Job job("refused");
  job.free_part();
  if (c.grows) job.raise_limit();
  test::running() += ": call " + std::to_string(k) + ", times " + std::to_string(times) +
                     (c.grows ? ", growing" : "");
  CU(cuCtxSynchronize());
  const int64_t before = simcuda_calls("*");
  CHECK(simcuda_fail("*", k, CUDA_ERROR_UNKNOWN, times) == 0);
  void* ptr = glake_malloc(c.bytes, 0, job.s[0]);
  const bool hit = simcuda_calls("*") - before >= k;
  if (ptr == nullptr) {
    int code = glake_last_error(nullptr, 0);
    CHECK(code == GLAKE_DRIVER_ERROR || code == GLAKE_OUT_OF_MEMORY);
  }
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  CHECK(hit || ptr != nullptr);
  if (ptr != nullptr) OK(glake_free(ptr));
  job.check();
  // The driver takes back what is owed, and all memory serves again.
  for (size_t bytes : {3 * kPart, c.bytes, kPart}) {
    void* again = job.get(bytes);
    CHECK(again != nullptr);
    job.check();
    job.drop(again);
  }
  return hit;
}

TEST(refusals_lose_nothing) {
  int64_t hits = 0;
  for (const Case& c : kCases) {
    for (int64_t times : {1, 2, -1}) {
      for (int64_t k = 1; refused(c, k, times); k += test::kShortened) ++hits;
    }
  }
  CHECK(hits > 90 / test::kShortened);
}

// If the driver refuses to cut a view, the view stays whole, and another view is made.
TEST(a_refused_cut_changes_nothing) {
  Job job("a refused cut changes nothing");
  job.free_part();
  CU(cuCtxSynchronize());
  CHECK(simcuda_fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, 1) == 0);
  void* ptr = job.get(4 * kPart);
  CHECK(ptr != nullptr && ptr != job.view && test::stat("glake.view_extensions") == 0);
  CHECK(test::stat("glake.views") == 2);
  job.check();
  job.drop(ptr);
  const int64_t maps = simcuda_calls("cuMemMap");
  CHECK(job.get(3 * kPart) != nullptr && simcuda_calls("cuMemMap") == maps);
  job.check();
}

// While a block lies in a view, empty_cache() does not give back the view's free granules, because
// the view still maps them.
TEST(what_a_view_maps_is_not_given_back) {
  Job job("what a view maps is not given back");
  void* front = job.get(20 * kMiB);
  CHECK(front == job.view);
  const int64_t held = test::stat("glake.physical_bytes");
  OK(glake_empty_cache(0));
  CHECK(test::stat("glake.physical_bytes") == held);
  job.check();
  job.drop(front);
  const int64_t maps = simcuda_calls("cuMemMap");
  CHECK(job.get(3 * kPart) == job.view && simcuda_calls("cuMemMap") == maps);
  job.check();
}

// An extension of a view is refused, and the driver does not let it be undone. The part that was
// mapped before still serves requests. The rest of the view is given to no block.
TEST(owed_views_serve_what_they_have) {
  Job job("owed views serve what they have");
  job.free_part();
  CU(cuCtxSynchronize());
  CHECK(simcuda_fail("cuMemMap", 2, CUDA_ERROR_UNKNOWN, 1) == 0);
  CHECK(simcuda_fail("cuMemUnmap", 2, CUDA_ERROR_UNKNOWN, -1) == 0);  // the first is the cut
  CHECK(job.get(4 * kPart) == nullptr);
  job.check();
  void* front = job.get(3 * kPart);
  CHECK(front == job.view);
  job.check();
  job.drop(front);
  const int64_t maps = simcuda_calls("cuMemMap");
  void* whole = job.get(4 * kPart);
  CHECK(whole != nullptr && whole != job.view && simcuda_calls("cuMemMap") == maps + 32);
  job.check();
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
