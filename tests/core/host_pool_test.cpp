// Pinned host memory: classes, reuse only after the recorded work, captures, destroyed streams,
// refusals, threads.
#include <thread>

#include "harness.h"

using test::kKiB;
using test::kMiB;

namespace {

int64_t host(const char* key) {
  return test::number_in(
      test::text_of([](char* to, size_t room) { return glake_host_stats(to, room); }), key);
}

struct Session {
  explicit Session(const char* driver_lock = "1") {
    test::fresh_simulator({{"memory", "64MiB"}, {"devices", "2"}, {"driver_lock", driver_lock}});
    test::configure({{"driver", "sim"}});
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    OK(glake_shutdown());
    for (int device = 0; device < 2; ++device) test::check_nothing_left(device);
    CHECK(test::number_in(test::ledger(), "host_blocks") == 0);
  }
};

void* get(size_t bytes) {
  void* ptr = glake_host_malloc(bytes);
  CHECK(ptr != nullptr);
  return ptr;
}

// The C struct and the JSON text have the same values. A caller with a shorter struct gets the
// members that it knows.
TEST(values_are_those_of_the_text) {
  test::running() = "values are those of the text";
  Session session;
  void* held = get(3 * kMiB);
  for (int i = 0; i < 2; ++i) OK(glake_host_free(get(5000)));
  glake_host_stats_values v;
  OK(glake_get_host_stats(&v, sizeof v));
  for (const auto& [name, stat] :
       {std::pair<std::string, glake_stat>("allocated_bytes", v.allocated_bytes),
        {"reserved_bytes", v.reserved_bytes}}) {
    CHECK(host((name + ".current").c_str()) == stat.current && stat.current > 0);
    CHECK(host((name + ".peak").c_str()) == stat.peak && stat.peak >= stat.current);
    CHECK(host((name + ".allocated").c_str()) == stat.allocated);
    CHECK(host((name + ".freed").c_str()) == stat.freed);
  }
  CHECK(v.allocated_bytes.current == static_cast<int64_t>(glake_host_block_bytes(held)));
  CHECK(v.live_blocks == 1 && v.blocks == 2 && v.waiting_blocks == 0 && v.hits == 1);
  CHECK(v.driver_allocs == 2 && v.driver_frees == 0 && v.allocated_bytes.freed == 2 * 8192);
  for (const auto& [name, value] : {std::pair("live_blocks", v.live_blocks),
                                    {"blocks", v.blocks},
                                    {"waiting_blocks", v.waiting_blocks},
                                    {"hits", v.hits},
                                    {"driver_allocs", v.driver_allocs},
                                    {"driver_frees", v.driver_frees}}) {
    CHECK_TEXT(host(name) == value, name);
  }
  int64_t few[2] = {-1, -1};
  OK(glake_get_host_stats(reinterpret_cast<glake_host_stats_values*>(few), sizeof few[0]));
  CHECK(few[0] == v.allocated_bytes.current && few[1] == -1);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_get_host_stats(nullptr, sizeof v));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_get_host_stats(&v, 0));
  OK(glake_host_free(held));
}

// No device memory has been used: only a context is needed.
TEST(cached_by_class) {
  test::running() = "cached by class";
  Session session;
  void* a = get(5000);
  std::memset(a, 1, 5000);
  CHECK(host("allocated_bytes.current") == 8192 && host("reserved_bytes.current") == 8192);
  OK(glake_host_free(a));
  CHECK(host("allocated_bytes.current") == 0 && host("reserved_bytes.current") == 8192);
  CHECK(get(8192) == a);
  CHECK(host("hits") == 1 && host("driver_allocs") == 1);
  void* b = get(4096);
  void* c = get(9 * kMiB);
  CHECK(host("reserved_bytes.current") == static_cast<int64_t>(8192 + 4096 + 10 * kMiB));
  {
    test::CurrentContext context(1);  // portable: known in every device's context
    CUdeviceptr device = 0;
    CU(cuMemHostGetDevicePointer(&device, c, 0));
  }
  GIVES(GLAKE_INVALID_POINTER, glake_host_free(&session));
  GIVES(GLAKE_INVALID_POINTER, glake_host_free(static_cast<char*>(a) + 1));
  OK(glake_host_free(nullptr));
  for (void* ptr : {a, b, c}) OK(glake_host_free(ptr));
  GIVES(GLAKE_INVALID_POINTER, glake_host_free(a));
  CHECK(test::last_error().find("freed already") != std::string::npos);
  CHECK(glake_host_malloc(size_t{1} << 62) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  OK(glake_host_empty_cache());
  CHECK(host("reserved_bytes.current") == 0 && host("driver_frees") == 3);
  CHECK(test::number_in(test::ledger(), "host_blocks") == 0);
}

TEST(waits_for_recorded_work) {
  test::running() = "waits for recorded work";
  Session session("0");  // a driver with a lock would not pin while the stream is held
  test::CurrentContext context;
  CUstream streams[2];
  for (CUstream& s : streams) CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CUdeviceptr data = 0;
  CU(cuMemAlloc(&data, kMiB));
  CU(cuMemsetD8(data, 7, kMiB));
  auto* a = static_cast<unsigned char*>(get(kMiB));
  CUdeviceptr flag = 0;
  CU(cuMemAlloc(&flag, 4));
  CU(cuMemsetD32(flag, 0, 1));
  CU(cuStreamWaitValue32(streams[1], flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
  for (CUstream s : streams) {
    CU(cuMemcpyDtoHAsync(a, data, kMiB, s));
    OK(glake_host_record_stream(a, 0, s));
    OK(glake_host_record_stream(a, 0, s));
  }
  OK(glake_host_free(a));
  CHECK(host("waiting_blocks") == 1);
  void* b = get(kMiB);
  CHECK(b != a);
  CU(cuStreamSynchronize(streams[0]));
  void* c = get(kMiB);
  CHECK(c != a);  // the other stream still waits
  CU(cuStreamWriteValue32(streams[0], flag, 1, 0));
  CU(cuStreamSynchronize(streams[1]));
  CHECK(a[kMiB - 1] == 7);
  CHECK(get(kMiB) == a);
  CHECK(host("waiting_blocks") == 0);
  for (void* ptr : {b, c, static_cast<void*>(a)}) OK(glake_host_free(ptr));
  // Events are used again.
  const int64_t events = test::number_in(test::ledger(), "events");
  for (int i = 0; i < 10; ++i) {
    void* d = get(kMiB);
    OK(glake_host_record_stream(d, 0, streams[0]));
    OK(glake_host_free(d));
    CU(cuStreamSynchronize(streams[0]));
  }
  OK(glake_host_free(get(kMiB)));
  CHECK(test::number_in(test::ledger(), "events") <= events + 1);
  GIVES(GLAKE_INVALID_POINTER, glake_host_record_stream(&session, 0, nullptr));
  GIVES(GLAKE_INVALID_DEVICE, glake_host_record_stream(b, 2, nullptr));
  CU(cuMemFree(data));
  CU(cuMemFree(flag));
  for (CUstream s : streams) test::end_stream(s);
}

// No event is recorded on a stream under capture. The block is held until the capture ends.
TEST(held_through_a_capture) {
  test::running() = "held through a capture";
  Session session;
  test::CurrentContext context;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  void* a = get(kMiB);
  OK(glake_host_record_stream(a, 0, stream));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(glake_host_free(a));
  void* b = get(kMiB);
  CHECK(b != a && host("waiting_blocks") == 1);
  OK(glake_host_free(b));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(stream, &graph));  // not invalidated
  CHECK(graph != nullptr);
  CU(cuGraphDestroy(graph));
  CHECK(get(kMiB) == b);
  void* c = get(kMiB);  // after the capture, this records an event behind a's work
  CU(cuStreamSynchronize(stream));
  void* d = c == a ? nullptr : get(kMiB);
  CHECK(c == a || d == a);
  for (void* ptr : {b, c, d}) OK(glake_host_free(ptr));
  test::end_stream(stream);
}

// There is no event behind the work of a destroyed stream. Only a synchronisation of the device
// shows that it is done.
TEST(destroyed_stream) {
  test::running() = "destroyed stream";
  Session session;
  test::CurrentContext context;
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  void* a = get(kMiB);
  OK(glake_host_record_stream(a, 0, stream));
  test::end_stream(stream);
  OK(glake_host_free(a));
  CHECK(host("waiting_blocks") == 1);
  const int64_t syncs = simcuda_calls("cuCtxSynchronize");
  OK(glake_host_empty_cache());
  CHECK(simcuda_calls("cuCtxSynchronize") == syncs + 1);
  CHECK(host("waiting_blocks") == 0 && host("reserved_bytes.current") == 0);
}

// A wait for the device would break the capture.
TEST(emptied_during_a_capture) {
  test::running() = "emptied during a capture";
  Session session;
  test::CurrentContext context;
  CUstream ended, captured;
  CU(cuStreamCreate(&ended, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
  void* a = get(kMiB);
  OK(glake_host_record_stream(a, 0, ended));
  test::end_stream(ended);
  OK(glake_host_free(a));
  void* named = glake_malloc(1, 0, captured);
  CHECK(named != nullptr);
  OK(glake_free(named));
  CU(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK(glake_capturing(0) == 1);
  OK(glake_host_empty_cache());
  CHECK(host("waiting_blocks") == 1);
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(captured, &graph));  // not invalidated
  CU(cuGraphDestroy(graph));
  OK(glake_host_empty_cache());
  CHECK(host("waiting_blocks") == 0 && host("reserved_bytes.current") == 0);
  test::end_stream(captured);
}

// While the driver does not say whether a stream is still being captured, its capture goes on.
TEST(capture_that_cannot_be_asked_about) {
  test::running() = "a capture that cannot be asked about";
  Session session;
  test::CurrentContext context;
  CUstream captured;
  CU(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
  void* named = glake_malloc(1, 0, captured);
  CHECK(named != nullptr);
  OK(glake_free(named));
  CU(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK(glake_capturing(0) == 1);
  CHECK(simcuda_fail("cuStreamIsCapturing", 1, CUDA_ERROR_UNKNOWN, -1) == 0);
  CHECK(glake_capturing(0) == 1);
  OK(glake_empty_cache(0));
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(captured, &graph));  // not invalidated
  CU(cuGraphDestroy(graph));
  CHECK(glake_capturing(0) == 0);
  test::end_stream(captured);
}

TEST(shutdown_needs_them_freed) {
  test::running() = "shutdown";
  Session session;
  void* a = get(1);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
  OK(glake_host_free(a));
}

// A job changes its sizes from step to step. The cache keeps at most an eighth, or 64 MiB, more
// than the job ever used at once. It does not keep one block of every size.
TEST(what_is_cached_is_bounded) {
  test::running() = "what is cached is bounded";
  Session session;
  test::Dice dice(5);
  int64_t most = 0;
  for (int step = 0; step < 40; ++step) {
    const size_t size = dice(20, 90) * 2 * kMiB;
    void* held[4];
    for (void*& ptr : held) ptr = get(size);
    most = std::max(most, static_cast<int64_t>(4 * size));
    CHECK(host("reserved_bytes.current") <= most + std::max<int64_t>(most / 8, 64 * kMiB));
    for (void* ptr : held) OK(glake_host_free(ptr));
  }
  CHECK(host("reserved_bytes.current") == test::number_in(test::ledger(), "host_bytes"));
  // If two sizes take turns, only the larger block is pinned. It serves both.
  const int64_t pinned = host("driver_allocs");
  for (int turn = 0; turn < 6; ++turn) {
    void* held[4];
    for (void*& ptr : held) ptr = get(turn % 2 == 0 ? 180 * kMiB : 20 * kMiB);
    for (void* ptr : held) OK(glake_host_free(ptr));
  }
  CHECK(host("driver_allocs") - pinned <= 8);
}

// A small request must not take a large block: the next large request would pin another one.
TEST(small_blocks_hold_no_large_ones) {
  test::running() = "small blocks hold no large ones";
  Session session;
  std::vector<void*> kept;
  OK(glake_host_free(get(256 * kMiB)));
  for (int i = 0; i < 64; ++i) kept.push_back(get(kMiB));
  for (size_t size : {4 * kKiB, 10 * kMiB}) {
    for (int round = 0; round < 12; ++round) {
      kept.push_back(get(size));
      OK(glake_host_free(get(256 * kMiB)));
    }
  }
  CHECK(host("reserved_bytes.current") <= static_cast<int64_t>(9 * 440 * kMiB / 8));
  for (void* ptr : kept) OK(glake_host_free(ptr));
}

TEST(every_call_refused) {
  for (int64_t times : {1, 2, -1}) {
    for (int code : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN}) {
      for (int64_t k = 1;; k += test::kSlowdown) {
        test::running() = "call " + std::to_string(k) + " refused " + std::to_string(times) +
                          " times with " + std::to_string(code);
        Session session;
        const int64_t calls = simcuda_calls("*");
        CHECK(simcuda_fail("*", k, code, times) == 0);
        void* a = glake_host_malloc(100 * kKiB);
        int status = glake_last_error(nullptr, 0);
        CHECK(a != nullptr || status == GLAKE_OUT_OF_MEMORY || status == GLAKE_DRIVER_ERROR);
        if (a != nullptr) {
          if (glake_host_record_stream(a, 1, nullptr) != GLAKE_OK) {
            CHECK(glake_last_error(nullptr, 0) == GLAKE_DRIVER_ERROR);
          }
          OK(glake_host_free(a));
          void* b = glake_host_malloc(100 * kKiB);
          if (b != nullptr) OK(glake_host_free(b));
          if (glake_host_empty_cache() != GLAKE_OK) {
            CHECK(glake_last_error(nullptr, 0) == GLAKE_DRIVER_ERROR);
          }
        }
        const bool past = simcuda_calls("*") - calls < k;
        CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
        void* c = get(100 * kKiB);
        OK(glake_host_free(c));
        CHECK(host("reserved_bytes.current") == test::number_in(test::ledger(), "host_bytes"));
        if (past) break;
      }
    }
  }
}

TEST(many_threads) {
  test::running() = "many threads";
  Session session;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      test::Dice dice(static_cast<uint64_t>(t));
      std::vector<unsigned char*> mine;
      for (int i = 0; i < 2000 / test::kSlowdown; ++i) {
        auto* ptr = static_cast<unsigned char*>(get(dice(1, 40000)));
        *ptr = static_cast<unsigned char>(t);
        if (dice.chance(30)) OK(glake_host_record_stream(ptr, t % 2, nullptr));
        mine.push_back(ptr);
        if (mine.size() < 10) continue;
        size_t which = dice(0, mine.size() - 1);
        CHECK(*mine[which] == t);
        OK(glake_host_free(mine[which]));
        mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(which));
        if (i % 100 == 0) OK(glake_host_empty_cache());
      }
      for (auto* ptr : mine) OK(glake_host_free(ptr));
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(host("allocated_bytes.current") == 0 && host("live_blocks") == 0);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
