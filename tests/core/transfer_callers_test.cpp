// Promises to callers other than right bytes: plain copies with ids of their own, copies in the
// order of two GPUs' streams, host memory pinned in the background, and memory that may not be
// freed yet.
#include <atomic>
#include <thread>

#include "gpu_stream.h"
#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::CurrentContext;
using test::kForever;
using test::kMiB;
using test::kPinned;
using test::Node;
using test::Stream;

namespace {

// A tracked copy is done when its bytes have arrived, whatever work comes after it in its stream.
TEST(tracked_copies) {
  test::running() = "tracked plain copies";
  Node node("dgx_a100", {{"memory", "256MiB"}});
  Buffer dst(0, kMiB), src(kPinned, kMiB);
  src.fill(1);
  Stream stream(0);
  auto copy = [&](size_t bytes) {
    const uint64_t id =
        Call(dst, 0, src, 0, bytes).on(stream.get(), 0).flags(GLAKE_COPY_TRACKED).start();
    CHECK_TEXT(id != 0, test::last_error());
    return id;
  };
  const uint64_t first = copy(4096);
  stream.hold();
  const uint64_t second = copy(8192);
  CHECK(first != second);
  OK(glake_copy_wait(first, kForever));
  CHECK(glake_copy_done(first) == 1 && glake_copy_done(second) == 0);
  CHECK(glake_copy_wait(second, 1000) == GLAKE_BUSY_TIMEOUT);
  uint64_t done = 1, total = 0;
  OK(glake_copy_progress(second, &done, &total));
  CHECK(done == 0 && total == 8192);
  const uint64_t dropped = copy(100);
  OK(glake_copy_release(dropped));
  CHECK(glake_copy_wait(dropped, 0) == GLAKE_INVALID_ARGUMENT);
  stream.let_go();
  CHECK(test::text_in(test::finish(second), "state") == "done");
  CHECK(dst.holds(1, 0, 8192, 0));
  OK(glake_copy_release(first));

  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      const auto part = static_cast<size_t>(i) * 8192;
      for (int k = 0; k < 20; ++k) {
        const uint64_t id = Call(dst, part, src, part, 8192).flags(GLAKE_COPY_TRACKED).start();
        CHECK_TEXT(id != 0, test::last_error());
        OK(glake_copy_wait(id, kForever));
        OK(glake_copy_release(id));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(dst.holds(1, 0, 3 * 8192, 0));
}

// The copy comes after the work of both streams, and both wait for it.
void two_streams(size_t bytes, unsigned flags) {
  test::running() = "two streams, " + std::to_string(bytes) + ", flags " + std::to_string(flags);
  Buffer dst(2, bytes), src(0, bytes);
  std::memset(dst.data(), 1, bytes);
  Stream one(0), two(2);
  one.fill(src.at(), 5, bytes);
  two.hold();
  two.fill(dst.at(), 9, bytes);
  Call call(dst, 0, src, 0, bytes);
  call.on(one.get(), 0).flags(flags);
  call.request.also_ordered = 1;
  call.request.also_device = 2;
  call.request.also_stream = two.get();
  const uint64_t id = call.start();
  CHECK_TEXT(id != 0, test::last_error());
  one.fill(src.at(), 6, bytes);
  CHECK(glake_copy_done(id) == 0 && dst.data()[0] != 5);
  // The wait lets all work run that may run. The copy may not run yet. (The wait for an untracked
  // copy cannot end early.)
  if (flags != 0) GIVES(GLAKE_BUSY_TIMEOUT, glake_copy_wait(id, 20'000'000));
  CHECK(dst.data()[0] != 5 && dst.data()[bytes - 1] != 5);
  two.let_go();
  two.synchronize();
  CHECK(dst.data()[0] == 5 && dst.data()[bytes - 1] == 5);
  test::finish(id);
  one.synchronize();
  CHECK(src.data()[0] == 6);
  call.request.also_device = 99;
  CHECK(call.start() == 0 && glake_last_error(nullptr, 0) == GLAKE_INVALID_DEVICE);
  call.request.ordered = 0;
  CHECK(call.start() == 0 && glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
}

TEST(two_streams) {
  Node node("dgx_a100", {{"memory", "256MiB"}});
  // The first copy between two GPUs waits for all work, because it gives one of them access.
  Buffer dst(2, 512), src(0, 512);
  test::finish(Call(dst, 0, src, 0, 512).start());
  for (size_t bytes : {size_t{4096}, 24 * kMiB}) {
    for (unsigned flags : {0u, unsigned{GLAKE_COPY_TRACKED}}) two_streams(bytes, flags);
  }
  CHECK(test::violations() == "[]");
}

TEST(pinning) {
  test::running() = "pinning";
  Node node("dgx_a100", {{"memory", "256MiB"}});
  std::vector<unsigned char> memory(5 * kMiB);
  void* const base = memory.data() + 100;
  const size_t bytes = memory.size() - 200;
  for (int round = 0; round < 4; ++round) {
    OK(glake_register_host(base, bytes, 1));
    std::vector<std::thread> waiters;
    for (int i = 0; i < 3; ++i) {
      waiters.emplace_back([&] { OK(glake_register_host_wait(base, kForever)); });
    }
    for (std::thread& thread : waiters) thread.join();
    uint64_t pinned = 0, total = 0;
    OK(glake_register_host_progress(base, &pinned, &total));
    CHECK(pinned == bytes && total == bytes);
    int device = 0, known = 0;
    OK(glake_place_of(memory.data() + memory.size() - 101, &device, &known));
    CHECK(device == GLAKE_HOST && known == 1);
    CHECK(glake_register_host(memory.data(), 200, 0) == GLAKE_INVALID_ARGUMENT);
    OK(glake_unregister_host(base));
    CHECK(glake_unregister_host(base) == GLAKE_INVALID_POINTER);
  }
  for (int round = 0; round < 4; ++round) {  // unregistered while pinning goes on
    OK(glake_register_host(base, bytes, 1));
    OK(glake_unregister_host(base));
  }
  OK(glake_register_host(base, bytes, 1));  // the end of the engine unpins it
  CHECK(glake_register_host(nullptr, 10, 0) == GLAKE_INVALID_ARGUMENT);
  CHECK(glake_register_host(base, 0, 1) == GLAKE_INVALID_ARGUMENT);
}

// Memory of a copy that no stream waits for cannot be freed before it is done.
TEST(frees) {
  Node node("dgx_a100", {{"memory", "256MiB"}});
  for (size_t bytes : {size_t{512}, 32 * kMiB}) {
    for (unsigned flags : {0u, unsigned{GLAKE_COPY_TRACKED}}) {
      test::running() = "free under a copy of " + std::to_string(bytes);
      Buffer src(kPinned, bytes);
      void* block = glake_malloc(bytes, 0, nullptr);
      void* other = glake_malloc(bytes, 0, nullptr);
      CHECK(block != nullptr && other != nullptr);
      const auto at = reinterpret_cast<uint64_t>(block);
      const uint64_t id = Call({{at, src.at(), bytes}}, 0, GLAKE_HOST).flags(flags).start();
      CHECK_TEXT(id != 0, test::last_error());
      OK(glake_free(other));
      const int freed = glake_free(block);
      if (freed != GLAKE_OK) {
        CHECK(freed == GLAKE_INVALID_POINTER);
        OK(glake_copy_wait(id, kForever));
        OK(glake_free(block));
      } else {
        CHECK(bytes < kMiB);  // it was done by then
      }
      OK(glake_copy_release(id));
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
