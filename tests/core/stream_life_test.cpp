// Streams that begin and end: each thread's own default stream, destroyed streams, and a destroyed
// stream's handle that a new stream gets.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "harness.h"

namespace {

using test::kMiB;

void* const kPerThread = reinterpret_cast<void*>(2);
void* const kLegacy = reinterpret_cast<void*>(1);

class Fixture {
 public:
  Fixture(const char* what, const test::Options& simulator, const char* limit,
          const char* devices = "1") {
    test::running() = what;
    test::fresh_simulator(simulator);
    CHECK(simcuda_configure("devices", devices) == 0);
    test::configure({{"driver", "sim"}, {"limit", limit}});
    context_ = std::make_unique<test::CurrentContext>();
  }
  ~Fixture() {
    OK(glake_check(0));
    CHECK_TEXT(test::violations() == "[]", test::violations());
    OK(glake_shutdown());
    CHECK(test::number_in(test::ledger(), "events") == 0);
    context_.reset();
    test::check_nothing_left();
  }

 private:
  std::unique_ptr<test::CurrentContext> context_;
};

void* get(size_t bytes, void* stream) {
  void* ptr = glake_malloc(bytes, 0, stream);
  CHECK(ptr != nullptr);
  return ptr;
}

TEST(legacy_is_null) {
  Fixture f("the legacy stream is NULL", {{"phantom", "1"}}, "8MiB");
  void* a = get(8 * kMiB, kLegacy);
  void* stream = &stream;
  OK(glake_block_info(a, nullptr, nullptr, &stream));
  CHECK(stream == nullptr);
  OK(glake_free(a));
  CHECK(get(8 * kMiB, nullptr) == a);
  CHECK(test::stat("glake.streams") == 1);
  OK(glake_free(a));
}

// One handle names two streams. Memory freed on one thread's stream is not free for the other
// thread at once.
TEST(threads_have_streams_of_their_own) {
  Fixture f("threads have streams of their own", {{"phantom", "1"}, {"complete_after", "-1"}},
            "16MiB");
  std::atomic<int> turn{0};
  void* first = nullptr;
  auto wait_for = [&turn](int n) {
    while (turn.load() != n) std::this_thread::yield();
  };
  std::thread other([&] {
    first = get(8 * kMiB, kPerThread);
    void* stream = nullptr;
    OK(glake_block_info(first, nullptr, nullptr, &stream));
    CHECK(stream == kPerThread);
    void* small = get(1000, kPerThread);
    OK(glake_free(first));
    OK(glake_free(small));
    CHECK(get(1000, kPerThread) == small);  // the thread's cache serves its own stream
    OK(glake_free(small));
    turn = 1;
    wait_for(2);
    // Only this thread can record events on its stream. So it makes waits of other streams
    // possible.
    void* again = get(8 * kMiB, kPerThread);
    CHECK(again == first);
    OK(glake_free(again));
    turn = 3;
  });
  wait_for(1);
  int64_t waits = simcuda_calls("cuStreamWaitEvent"), records = simcuda_calls("cuEventRecord");
  void* mine = get(6 * kMiB, kPerThread);
  CHECK(mine != first);
  CHECK(test::stat("glake.streams") == 2);
  // No event was recorded on the other thread's stream, which only that thread can name.
  CHECK(simcuda_calls("cuEventRecord") == records && simcuda_calls("cuStreamWaitEvent") == waits);
  turn = 2;
  wait_for(3);
  other.join();
  // The other thread has ended. Its work is complete at the next synchronisation, which this
  // request needs.
  int64_t syncs = simcuda_calls("cuCtxSynchronize");
  void* all = get(10 * kMiB, kPerThread);
  CHECK(simcuda_calls("cuCtxSynchronize") == syncs + 1);
  OK(glake_free(all));
  OK(glake_free(mine));
  // A later thread has yet another stream.
  std::thread([] { OK(glake_free(get(3 * kMiB, kPerThread))); }).join();
  CHECK(test::stat("glake.streams") == 3);
}

// Blocks keep their contents on streams whose work runs as late as is legal.
TEST(threads_share_memory_safely) {
  for (int round = 0; round < 4; ++round) {
    Fixture f("per-thread streams, contents",
              {{"memory", "64MiB"}, {"seed", std::to_string(round)}, {"schedule", "threaded"}},
              "24MiB");
    std::vector<std::thread> workers;
    for (uint32_t t = 0; t < 3; ++t) {
      workers.emplace_back([t] {
        test::CurrentContext context;
        test::Dice dice(t);
        auto* stream = reinterpret_cast<CUstream>(kPerThread);
        std::vector<uint32_t> words(kMiB / 4 * 5);
        for (uint32_t i = 0; i < 60u / test::kSlowdown; ++i) {
          size_t bytes = dice(1, 5) * kMiB;
          void* ptr = glake_malloc(bytes, 0, kPerThread);
          if (ptr == nullptr) continue;
          uint32_t word = t << 16 | i;
          auto at = reinterpret_cast<CUdeviceptr>(ptr);
          CU(cuMemsetD32Async(at, word, bytes / 4, stream));
          if (i % 3 != 0) {
            CU(cuMemcpyDtoHAsync(words.data(), at, bytes, stream));
            CU(cuStreamSynchronize(stream));
            for (size_t w = 0; w < bytes / 4; ++w) CHECK(words[w] == word);
          }
          OK(glake_free(ptr));
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
  }
}

TEST(destroyed_streams) {
  Fixture f("destroyed streams", {{"phantom", "1"}, {"complete_after", "-1"}}, "16MiB");
  CUstream s = nullptr, other = nullptr;
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(glake_free(get(1000, other)));
  void* a = get(8 * kMiB, s);
  void* b = get(8 * kMiB, s);
  CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(a), 1, 8 * kMiB, s));
  OK(glake_free(a));
  test::end_stream(s);
  OK(glake_free(b));
  // Only a synchronisation of the device tells that the destroyed stream's work is done.
  int64_t syncs = simcuda_calls("cuCtxSynchronize");
  void* c = get(16 * kMiB - 2 * kMiB, other);
  CHECK(simcuda_calls("cuCtxSynchronize") == syncs + 1);
  OK(glake_free(c));
  // glake does not ask about the destroyed stream again and again.
  int64_t records = simcuda_calls("cuEventRecord"), asked = simcuda_calls("cuStreamIsCapturing");
  for (int i = 0; i < 200; ++i) OK(glake_free(get(3 * kMiB, other)));
  CHECK(simcuda_calls("cuEventRecord") - records <= 4);
  CHECK(simcuda_calls("cuStreamIsCapturing") - asked <= 8);
  CHECK_TEXT(test::stat("glake.streams") == 2, test::stats());
  test::end_stream(other);
}

// Memory that was freed on a stream is marked when glake is told that the stream ends. It needs no
// synchronisation later.
TEST(a_stream_that_is_forgotten_is_marked) {
  Fixture f("forgotten streams", {{"phantom", "1"}}, "16MiB");
  CUstream s = nullptr, other = nullptr;
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(glake_free(get(1000, other)));
  OK(glake_free(get(14 * kMiB, s)));
  test::end_stream(s);
  const int64_t syncs = simcuda_calls("cuCtxSynchronize");
  OK(glake_free(get(14 * kMiB, other)));
  CHECK(simcuda_calls("cuCtxSynchronize") == syncs);
  test::end_stream(other);
}

// Nobody tells glake when these streams end. Only calls that name a stream may ask about it. Any
// other question is undefined: the simulator notes it, and the fixture's end finds it.
TEST(streams_that_may_end) {
  for (const bool debug : {false, true}) {
    Fixture f("streams that may end", {{"memory", "64MiB"}}, "16MiB");
    if (debug) test::configure({{"debug", "guard,poison,sync"}});
    CUstream s = nullptr, other = nullptr;
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(glake_stream_may_end(0, s));
    OK(glake_stream_may_end(0, s));
    OK(glake_free(get(1000, other)));
    void* a = get(4 * kMiB, s);
    void* b = get(2 * kMiB, s);
    void* c = get(2 * kMiB, other);
    OK(glake_record_stream(c, s));
    void* pinned = glake_host_malloc(3 * kMiB);
    CHECK(pinned != nullptr);
    OK(glake_host_record_stream(pinned, 0, s));
    CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(a), 1, 4 * kMiB, s));
    OK(glake_free(a));
    CU(cuStreamDestroy(s));
    OK(glake_free(b));
    OK(glake_free(c));
    OK(glake_host_free(pinned));
    for (int i = 0; i < 20; ++i) OK(glake_free(get(3 * kMiB, other)));
    OK(glake_check(0));
    void* most = get(debug ? 11 * kMiB : 14 * kMiB, other);  // a synchronisation frees the rest
    OK(glake_free(most));
    OK(glake_empty_cache(0));
    OK(glake_host_empty_cache());
    test::end_stream(other);
  }
}

// While a stream that may end lives, its next allocation marks what was freed on it. Then other
// streams get that memory.
TEST(a_stream_that_may_end_serves_others) {
  Fixture f("streams that may end serve others", {{"phantom", "1"}}, "16MiB");
  CUstream s = nullptr, other = nullptr;
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(glake_stream_may_end(0, s));
  OK(glake_free(get(1000, other)));
  OK(glake_free(get(8 * kMiB, s)));
  OK(glake_free(get(2 * kMiB, s)));
  const int64_t syncs = simcuda_calls("cuCtxSynchronize");
  OK(glake_free(get(14 * kMiB, other)));
  CHECK(simcuda_calls("cuCtxSynchronize") <= syncs + 1);
  CHECK(test::stat("glake.streams") == 2);  // a stream that lives is counted once
  test::end_stream(s);
  test::end_stream(other);
}

// A stream that is idle when it ends leaves nothing to wait for. So its memory serves the next one
// at once, and no event is needed.
TEST(streams_that_end_idle_leave_their_memory_to_the_next) {
  Fixture f("streams that end idle", {}, "64MiB");
  const int64_t records = simcuda_calls("cuEventRecord");
  for (int i = 0; i < 12; ++i) {
    CUstream s = nullptr;
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    void* blocks[] = {get(kMiB, s), get(kMiB, s), get(kMiB, s)};
    CU(cuStreamSynchronize(s));
    for (void* block : blocks) OK(glake_free(block));
    test::end_stream(s);
  }
  CHECK(simcuda_calls("cuEventRecord") == records);
  CHECK(test::stat("reserved_bytes.all.current") == 4 * kMiB);
}

// Programs make a stream for each piece of work, and more streams than there are ids. `told`: of
// two pieces, the streams of so many are told of when they end. Else the next stream with the
// handle shows it.
void run_pieces(const char* limit, int pieces, int told) {
  Fixture f("a stream for each piece of work", {{"phantom", "1"}, {"reuse_handles", "1"}}, limit);
  for (int i = 0; i < pieces; ++i) {
    CUstream s = nullptr;
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    if (i % 2 >= told) OK(glake_stream_may_end(0, s));
    OK(glake_free(get(3 * kMiB, s)));
    OK(glake_free(get(1000, s)));
    if (i % 2 < told) {
      test::end_stream(s);
    } else {
      CU(cuStreamDestroy(s));
    }
  }
  const int64_t known = test::stat("glake.streams");
  CHECK_TEXT(known < 8192, std::to_string(known));
}

TEST(a_stream_for_each_piece_of_work) {
  for (const int told : {0, 1}) run_pieces("64MiB", 10'000 / test::kSlowdown, told);
  run_pieces("1GiB", 70'000 / test::kSlowdown, 2);
}

// Nothing synchronises the device here until ids run out.
TEST(streams_that_use_no_memory) {
  Fixture f("streams that use no memory", {{"phantom", "1"}, {"reuse_handles", "1"}}, "64MiB");
  OK(glake_free(get(1000, nullptr)));
  const int64_t syncs = simcuda_calls("cuCtxSynchronize");
  for (int i = 0; i < 140'000; ++i) {
    CUstream s = nullptr;
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(glake_stream_may_end(0, s));
    CU(cuStreamDestroy(s));
  }
  const int64_t more = simcuda_calls("cuCtxSynchronize") - syncs;
  CHECK_TEXT(more >= 1 && more < 10, std::to_string(more));
}

// A block that the earlier stream of the handle made and the later one uses keeps the id.
TEST(blocks_keep_ids_of_ended_streams) {
  Fixture f("blocks keep ids", {{"phantom", "1"}, {"reuse_handles", "1"}}, "64MiB");
  std::vector<void*> kept;
  for (int i = 0; i < 2000; ++i) {
    CUstream s = nullptr;
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(glake_stream_may_end(0, s));
    kept.push_back(get(1000, s));
    CU(cuStreamDestroy(s));
    if (i % 500 == 499) OK(glake_empty_cache(0));
  }
  CHECK(test::stat("glake.streams") >= 2000);
  for (void* ptr : kept) OK(glake_free(ptr));
}

TEST(default_streams_never_end) {
  Fixture f("default streams", {{"phantom", "1"}}, "16MiB");
  for (void* stream : {static_cast<void*>(nullptr), kPerThread}) {
    OK(glake_free(get(2 * kMiB, stream)));
    OK(glake_stream_may_end(0, stream));
    OK(glake_forget_stream(0, stream));
    OK(glake_free(get(2 * kMiB, stream)));
  }
  CHECK(glake_forget_stream(-1, nullptr) == GLAKE_INVALID_DEVICE);
  CHECK(glake_stream_may_end(99, reinterpret_cast<void*>(uintptr_t{4096})) == GLAKE_INVALID_DEVICE);
}

// A new stream has the handle of a destroyed one. The old stream's work is not ordered before work
// of the new stream.
void reused_handles(bool told) {
  Fixture f("reused handles", {{"phantom", "1"}, {"complete_after", "-1"}, {"reuse_handles", "1"}},
            "24MiB");
  CUstream s = nullptr, other = nullptr;
  CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  const CUstream before = s;
  if (!told) OK(glake_stream_may_end(0, s));
  OK(glake_free(get(1000, other)));
  void* a = get(8 * kMiB, s);
  void* b = get(2 * kMiB, other);
  OK(glake_free(a));
  if (told) {
    test::end_stream(s);
  } else {
    CU(cuStreamDestroy(s));
  }
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CHECK(s == before);
  OK(glake_free(get(2 * kMiB, nullptr)));
  const int64_t waits = simcuda_calls("cuStreamWaitEvent");
  void* c = get(6 * kMiB, s);
  CHECK(c != a || (told && simcuda_calls("cuStreamWaitEvent") > waits));
  CHECK_TEXT(test::stat("glake.streams") == 4, std::to_string(test::stat("glake.streams")));
  OK(glake_free(c));
  OK(glake_free(b));
  test::end_stream(s);
  test::end_stream(other);
}

// Asks glake for memory during a capture on s.
void capture(int device, CUstream s) {
  CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(glake_free(glake_malloc(2 * kMiB, device, s)));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(s, &graph));
  CU(cuGraphDestroy(graph));
}

// A stream that may end has ended, and a new stream has its handle. Nobody said that the new one
// may end, so glake may ask at any time whether it is still captured.
TEST(a_capture_on_a_reused_handle) {
  Fixture f("a capture on a reused handle", {{"phantom", "1"}, {"reuse_handles", "1"}}, "24MiB");
  CUstream s = nullptr;
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  const CUstream before = s;
  OK(glake_stream_may_end(0, s));
  OK(glake_free(get(2 * kMiB, s)));
  CU(cuStreamDestroy(s));
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CHECK(s == before);
  capture(0, s);
  OK(glake_free(get(24 * kMiB, nullptr)));  // no capture forbids to synchronise now
  test::end_stream(s);
}

// The caller says once that the stream may end, with the stream's own device. That holds for the
// memory of all devices.
TEST(the_end_of_a_capture_is_told_to_all_devices) {
  Fixture f("the end of a capture", {{"phantom", "1"}}, "24MiB", "2");
  CUstream s = nullptr;
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  OK(glake_stream_may_end(0, s));
  OK(glake_free(get(2 * kMiB, s)));
  capture(1, s);
  OK(glake_stream_may_end(0, s));
  void* all = glake_malloc(24 * kMiB, 1, nullptr);
  CHECK(all != nullptr);
  OK(glake_free(all));
  CU(cuStreamDestroy(s));
}

// A stream of GPU 1 reads memory of GPU 0. Nobody gets the memory before that is done.
TEST(a_stream_of_another_gpu) {
  constexpr size_t kBytes = 14 * kMiB;
  Fixture f("a stream of another GPU", {{"memory", "64MiB"}, {"driver_lock", "0"}}, "16MiB", "2");
  void* block = get(kBytes, nullptr);
  CUstream there = nullptr;
  auto* words = static_cast<uint32_t*>(glake_host_malloc(kBytes));
  auto* flag = static_cast<uint32_t*>(glake_host_malloc(4));
  *flag = 0;
  CU(cuMemsetD32(reinterpret_cast<CUdeviceptr>(block), 5, kBytes / 4));
  {
    test::CurrentContext context(1);
    CU(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    OK(glake_enable_peer_access(0, 1));
    CU(cuStreamWaitValue32(there, reinterpret_cast<CUdeviceptr>(flag), 1,
                           CU_STREAM_WAIT_VALUE_GEQ));
    CU(cuMemcpyDtoHAsync(words, reinterpret_cast<CUdeviceptr>(block), kBytes, there));
  }
  OK(glake_record_stream(block, there));
  OK(glake_free(block));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
  });
  void* other = get(kBytes, nullptr);
  CHECK(__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 1);
  CU(cuMemsetD32(reinterpret_cast<CUdeviceptr>(other), 9, kBytes / 4));
  later.join();
  {
    test::CurrentContext context(1);
    CU(cuStreamSynchronize(there));
    CHECK(words[0] == 5 && words[kBytes / 4 - 1] == 5);
    test::end_stream(there);
  }
  OK(glake_free(other));
  OK(glake_host_free(words));
  OK(glake_host_free(flag));
}

TEST(reused_handles_of_streams_that_were_forgotten) { reused_handles(true); }
TEST(reused_handles_of_streams_that_may_end) { reused_handles(false); }

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
