// The lock that a driver may have inside (the simulator's option driver_lock): calls that free, pin
// or unmap wait for all work under way and keep other threads' copies out. A copy whose stream is
// held until threads have enqueued more would wait for ever; with copy_order=enqueued nothing does.
#include <atomic>

#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::kMiB;
using test::kPageable;
using test::kPinned;
using test::Node;

namespace {

constexpr size_t kBytes = 12 * kMiB;

const test::Options kLocked = {{"memory", "512MiB"}, {"driver_lock", "1"}};
const test::Options kEnqueued = {{"copy_order", "enqueued"}};

struct Stream {
  Stream() { CU(cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING)); }
  ~Stream() { CU(cuStreamDestroy(handle)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream handle = nullptr;
};

// What other libraries do meanwhile, and this one when memory is short.
void disturb(int turn) {
  CUdeviceptr block = 0;
  void* pinned = nullptr;
  switch (turn % 4) {
    case 0:
      CU(cuMemAlloc(&block, kMiB));
      CU(cuMemFree(block));
      break;
    case 1:
      CU(cuMemHostAlloc(&pinned, 4096, 0));
      CU(cuMemFreeHost(pinned));
      break;
    case 2:
      OK(glake_empty_cache(0));
      break;
    default: {
      std::vector<char> pages(1 << 16);
      void* const page =
          reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(pages.data()) + 4095) / 4096 * 4096);
      CU(cuMemHostRegister(page, 4096, 0));
      CU(cuMemHostUnregister(page));
    }
  }
}

// A call that frees waits for a stream that is held, and for nothing else.
TEST(a_free_waits_for_all_work) {
  test::running() = "a free waits";
  Node node("dgx_a100", kLocked);
  Buffer word(kPinned, 4096), host(kPinned, 4096);
  std::memset(word.data(), 0, 4);
  test::CurrentContext context(0);
  Stream stream;
  CU(cuStreamWaitValue32(stream.handle, word.at(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  CUdeviceptr block = 0;
  CU(cuMemAlloc(&block, kMiB));
  std::atomic<int> freed{0}, copied{0};
  std::thread frees([&] {
    test::CurrentContext mine(0);
    CU(cuMemFree(block));
    freed = 1;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::thread copies([&] {
    test::CurrentContext mine(0);
    Stream other;
    CU(cuMemcpyAsync(host.at(), word.at(), 4, other.handle));
    copied = 1;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(freed == 0 && copied == 0);
  __atomic_store_n(reinterpret_cast<uint32_t*>(word.data()), 1, __ATOMIC_RELEASE);
  frees.join();
  copies.join();
  CHECK(freed == 1 && copied == 1);
  CU(cuStreamSynchronize(stream.handle));
}

// Every way to begin a copy, beside a thread that frees, pins and unmaps.
void copies_beside_frees(int rounds) {
  test::running() = "copies beside frees";
  Node node("dgx_a100", kLocked, true, kEnqueued);
  Buffer a(0, kBytes), b(1, kBytes), pinned(kPinned, kBytes), pageable(kPageable, kBytes);
  std::atomic<bool> over{false};
  std::thread others([&] {
    test::CurrentContext mine(0);
    for (int turn = 0; !over; ++turn) disturb(turn);
  });
  {
    test::CurrentContext context(0);
    Stream stream, second;
    for (int round = 0; round < rounds; ++round) {
      const auto value = static_cast<unsigned char>(round % 250 + 1);
      Buffer& host = round % 5 == 4 ? pageable : pinned;
      std::memset(host.data(), value, kBytes);
      std::vector<uint64_t> ids;
      const auto start = [&](Call& call) {
        ids.push_back(call.start());
        CHECK_TEXT(ids.back() != 0, test::last_error());
      };
      const unsigned flags = round % 7 == 6 ? unsigned{GLAKE_COPY_CHECKSUM} : 0u;
      CU(cuMemsetD8Async(a.at(), 0xEE, kBytes, stream.handle));  // the stream is at work
      start(Call(a, 0, host, 0, kBytes).on(stream.handle, 0).flags(flags));
      OK(glake_copy_stream_wait(ids.back(), 0, second.handle));
      start(Call(b, 0, a, 0, kBytes).on(stream.handle, 0));
      start(Call(pinned, 0, b, 0, kBytes).on(stream.handle, 0));
      CU(cuStreamSynchronize(stream.handle));
      CU(cuStreamSynchronize(second.handle));
      CHECK(pinned.data()[0] == value);
      CHECK(std::memcmp(pinned.data(), pinned.data() + 1, kBytes - 1) == 0);
      if (round % 3 == 0) start(Call(a, 0, host, 0, kBytes).flags(0));  // of no stream
      for (uint64_t id : ids) test::finish(id);
    }
  }
  over = true;
  others.join();
  CHECK(test::violations() == "[]");
}

int rounds = 60;

TEST(copies_beside_frees_end) { copies_beside_frees(rounds); }

}  // namespace

int main(int argc, char** argv) {
  rounds = test::number_argument(argc, argv, rounds);
  return test::run_cases(argc, argv);
}
