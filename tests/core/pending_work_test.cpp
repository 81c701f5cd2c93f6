// No eviction and no trim unmaps addresses that pending work will use. No other stream gets their
// bytes before that work is done. The simulator runs work as late as is legal, and notes what it
// finds.
#include <algorithm>
#include <memory>

#include "base/tuning.h"
#include "harness.h"

namespace {

using test::kGranule;
using test::kMiB;

constexpr glake_pool kPool{5, 0};

class Fixture {
 public:
  explicit Fixture(const char* what, const test::Options& options = {{"limit", "32MiB"}}) {
    test::running() = what;
    test::fresh_simulator({{"memory", "256MiB"}, {"devices", "1"}});
    test::configure({{"driver", "sim"}});
    test::configure(options);
    context_ = std::make_unique<test::CurrentContext>();
    for (CUstream& stream : s) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  ~Fixture() {
    CU(cuCtxSynchronize());
    CHECK_TEXT(test::violations() == "[]", test::violations());
    OK(glake_check(0));
    OK(glake_shutdown());
    for (CUstream stream : s) test::end_stream(stream);
    context_.reset();
    test::check_nothing_left();
  }
  CUstream s[2] = {};

 private:
  std::unique_ptr<test::CurrentContext> context_;
};

void* get(size_t bytes, CUstream stream) {
  void* ptr = glake_malloc(bytes, 0, stream);
  CHECK(ptr != nullptr);
  return ptr;
}
void fill(void* ptr, size_t bytes, CUstream stream) {
  CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(ptr), 1, bytes, stream));
}

// Eight blocks of 4 MiB, and 12 MiB stitched where three of them were.
void* stitched(CUstream stream, std::vector<void*>* beside) {
  std::vector<void*> parts;
  for (int i = 0; i < 8; ++i) parts.push_back(get(4 * kMiB, stream));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i % 2 == 0) {
      OK(glake_free(parts[i]));
    } else {
      beside->push_back(parts[i]);
    }
  }
  const int64_t before = test::stat("glake.stitches");
  void* ptr = get(12 * kMiB, stream);
  CHECK(test::stat("glake.stitches") == before + 1);
  return ptr;
}

// A pool's request makes the device's own heap give its granules back.
TEST(views_stay_for_their_work) {
  Fixture f("views stay for their work");
  std::vector<void*> beside;
  void* view = stitched(f.s[0], &beside);
  fill(view, 12 * kMiB, f.s[0]);
  OK(glake_free(view));
  void* ptr = glake_pool_malloc(14 * kMiB, 0, f.s[1], kPool);
  CHECK(ptr != nullptr);
  CHECK(test::stat("glake.evictions") == 1);
  fill(ptr, 14 * kMiB, f.s[1]);
  OK(glake_free(ptr));
  for (void* block : beside) OK(glake_free(block));
}

// The memory of a contiguous block goes to granules once its work, also that of recorded streams,
// is done.
void contiguous_blocks_stay(int kind, bool recorded) {
  Fixture f("contiguous blocks stay");
  void* block = glake_malloc_contiguous(20 * kMiB, 0, f.s[0], kind);
  CHECK(block != nullptr);
  CUstream worker = f.s[0];
  if (recorded) {
    worker = f.s[1];
    OK(glake_record_stream(block, worker));
  }
  fill(block, 20 * kMiB, worker);
  OK(glake_free(block));
  void* ptr = get(20 * kMiB, f.s[0]);
  CHECK(test::stat("glake.contiguous_bytes") == 0);
  OK(glake_free(ptr));
}

// glake makes no more calls about a destroyed stream.
TEST(gone_streams_are_not_asked) {
  Fixture f("gone streams are not asked");
  CUstream gone = nullptr;
  CU(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
  OK(glake_free(get(8 * kMiB, f.s[0])));
  OK(glake_free(get(8 * kMiB, gone)));
  test::end_stream(gone);
  auto needed = [] {
    return simcuda_calls("cuEventRecord") + simcuda_calls("cuStreamWaitEvent") +
           simcuda_calls("cuStreamQuery");
  };
  const int64_t asked = simcuda_calls("cuStreamIsCapturing"), before = needed();
  for (int i = 0; i < 50; ++i) {
    for (CUstream stream : f.s) OK(glake_free(get(2 * kMiB, stream)));
  }
  CHECK(simcuda_calls("cuStreamIsCapturing") - asked <= needed() - before + 2);
}

// A step that repeats gets its blocks at their old places. If another stream used a place, the
// stream waits for it.
TEST(repeated_places_wait_for_their_work) {
  Fixture f("repeated places wait for their work", {{"limit", "8MiB"}});
  constexpr size_t kUsed = 64 * test::kKiB;
  std::vector<uint8_t> seen(kUsed);
  int64_t repeats = 0;
  for (int step = 0; step < 5; ++step) {
    repeats = test::stat("glake.repeats");
    for (size_t i = 0; i < 24; ++i) {  // 8 MiB have no room for both, so they share memory
      void* first = get(5 * kMiB + i * 1024, f.s[0]);
      fill(first, kUsed, f.s[0]);
      OK(glake_free(first));
      void* second = get(5 * kMiB + i * 1024, f.s[1]);
      auto address = reinterpret_cast<CUdeviceptr>(second);
      CU(cuMemsetD8Async(address, 2, kUsed, f.s[1]));
      CU(cuStreamSynchronize(f.s[1]));
      CU(cuStreamSynchronize(f.s[0]));
      CU(cuMemcpyDtoH(seen.data(), address, kUsed));
      CHECK(seen == std::vector<uint8_t>(kUsed, 2));
      OK(glake_free(second));
    }
  }
  CHECK(test::stat("glake.repeats") - repeats > 40);
}

// Holds streams still until it lets them go. No query finds their work done before.
class Gate {
 public:
  Gate() {
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&word_), 4, 0));
    *word_ = 0;
  }
  ~Gate() { CU(cuMemFreeHost(word_)); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void hold(CUstream stream) {
    CU(cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(word_), 1,
                           CU_STREAM_WAIT_VALUE_GEQ));
  }
  void let_go() { __atomic_store_n(word_, 1, __ATOMIC_RELEASE); }

 private:
  uint32_t* word_ = nullptr;
};

bool all(const void* ptr, size_t bytes, uint8_t value) {
  std::vector<uint8_t> seen(bytes);
  CU(cuMemcpyDtoH(seen.data(), reinterpret_cast<CUdeviceptr>(ptr), bytes));
  return seen == std::vector<uint8_t>(bytes, value);
}

// A freed block is recorded on this many streams: as many as a set of tickets has room for, one
// more, or many. The next request gets its memory only after the work of each stream.
void recorded_on(size_t streams, bool pooled, size_t bytes) {
  const size_t used = std::min(bytes, 64 * test::kKiB);
  Fixture f("frees recorded on many streams");
  test::running() +=
      ": " + std::to_string(streams) + (pooled ? " in a pool, " : ", ") + std::to_string(bytes);
  auto request = [&] {
    void* ptr = pooled ? glake_pool_malloc(bytes, 0, f.s[0], kPool) : get(bytes, f.s[0]);
    CHECK(ptr != nullptr);
    return ptr;
  };
  Gate gate;
  std::vector<CUstream> users(streams);
  for (CUstream& user : users) CU(cuStreamCreate(&user, CU_STREAM_NON_BLOCKING));
  void* first = request();
  for (CUstream user : users) {
    OK(glake_record_stream(first, user));
    gate.hold(user);
    fill(first, used, user);
  }
  OK(glake_free(first));
  void* second = request();
  CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(second), 2, used, f.s[0]));
  gate.let_go();
  CU(cuStreamSynchronize(f.s[0]));
  for (CUstream user : users) CU(cuStreamSynchronize(user));
  CHECK(all(second, used, 2));
  OK(glake_free(second));
  CU(cuCtxSynchronize());
  for (CUstream user : users) test::end_stream(user);
}

TEST(frees_recorded_on_many_streams_wait) {
  for (size_t streams : {7, 8, 9, 20}) recorded_on(streams, false, 20 * kMiB);
}

TEST(frees_into_a_pool_wait_for_recorded_streams) {
  for (size_t streams : {1, 8, 20}) recorded_on(streams, true, 20 * kMiB);
}

// Threads keep freed small blocks for the next request of their size and stream, but no block that
// other streams use.
TEST(small_frees_wait_for_recorded_streams) {
  for (size_t bytes : {size_t{512}, 64 * test::kKiB, kMiB}) recorded_on(1, false, bytes);
}

// Threads give a kept block only to the stream that freed it, because that stream's work on it may
// be pending. There are more streams than the cache has shelves, so at least two share a shelf.
TEST(small_frees_serve_their_own_stream) {
  Fixture f("small frees serve their own stream", {{"limit", "192MiB"}});
  constexpr size_t kBytes = 512;
  Gate gate;
  std::vector<CUstream> users(glake::Tuning::kCacheShelves + 1);
  std::vector<void*> blocks;
  for (CUstream& user : users) {
    CU(cuStreamCreate(&user, CU_STREAM_NON_BLOCKING));
    blocks.push_back(get(kBytes, user));
    gate.hold(user);
    fill(blocks.back(), kBytes, user);
  }
  // The later stream's block comes first, and its work is waited for last.
  for (size_t i = users.size(); i-- > 0;) OK(glake_free(blocks[i]));
  for (size_t i = 0; i < users.size(); ++i) {
    blocks[i] = get(kBytes, users[i]);
    CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(blocks[i]), 2, kBytes, users[i]));
  }
  gate.let_go();
  for (CUstream user : users) CU(cuStreamSynchronize(user));
  for (void* block : blocks) {
    CHECK(all(block, kBytes, 2));
    OK(glake_free(block));
  }
  for (CUstream user : users) test::end_stream(user);
}

TEST(chunks_wait_for_their_work) {
  for (int kind : {GLAKE_CONTIGUOUS_VMM, GLAKE_CONTIGUOUS_LEGACY}) {
    contiguous_blocks_stay(kind, false);
    contiguous_blocks_stay(kind, true);
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
