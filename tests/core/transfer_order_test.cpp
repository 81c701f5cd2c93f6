// A transfer takes its place in the caller's stream. It reads what earlier work wrote, and later
// work sees what it wrote, under schedules that run everything as late as is legal. The call
// returns at once.
#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::kMiB;
using test::kPinned;
using test::Node;

namespace {

constexpr size_t kBytes = 24 * kMiB;

struct Stream {
  Stream() { CU(cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING)); }
  ~Stream() { test::end_stream(handle); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream handle = nullptr;
};

bool all(Buffer& buffer, unsigned char value) {
  for (size_t i = 0; i < kBytes; ++i) {
    if (buffer.data()[i] != value) return false;
  }
  return true;
}

// Five steps in a stream: memset of a, a to host, another memset of a, host to b, b to other host.
// Each step must see what the step before it wrote.
void chain(const char* preset, int seed, const char* order) {
  test::running() =
      std::string("chain on ") + preset + ", seed " + std::to_string(seed) + ", " + order;
  Node node(preset, {{"memory", "256MiB"}, {"seed", std::to_string(seed)}}, true,
            {{"copy_order", order}});
  Buffer a(0, kBytes), b(0, kBytes), host(kPinned, kBytes), back(kPinned, kBytes);
  test::CurrentContext context(0);
  {
    Stream stream;
    for (int round = 0; round < 2; ++round) {
      const auto value = static_cast<unsigned char>(10 * seed + round + 1);
      uint64_t ids[3];
      CU(cuMemsetD8Async(a.at(), value, kBytes, stream.handle));
      ids[0] = Call(host, 0, a, 0, kBytes).on(stream.handle, 0).start();
      CU(cuMemsetD8Async(a.at(), 0xEE, kBytes, stream.handle));
      CU(cuMemsetD8Async(b.at(), 0xDD, kBytes, stream.handle));
      ids[1] = Call(b, 0, host, 0, kBytes).on(stream.handle, 0).start();
      ids[2] = Call(back, 0, b, 0, kBytes).on(stream.handle, 0).start();
      for (uint64_t id : ids) CHECK_TEXT(id != 0, test::last_error());
      if (round == 0) {
        CU(cuStreamSynchronize(stream.handle));
      } else {
        OK(glake_copy_wait(ids[2], test::kForever));
      }
      CHECK(all(back, value));
      CHECK(all(host, value));
      CU(cuStreamSynchronize(stream.handle));
      CHECK(all(a, 0xEE));
      for (uint64_t id : ids) {
        OK(glake_copy_wait(id, test::kForever));
        CHECK(test::result_of(id).find("\"relayed\": true") != std::string::npos);
        OK(glake_copy_release(id));
      }
    }
  }
  CHECK(test::violations() == "[]");
}

// The host keeps the stream from reaching the transfer. Until then nothing is written.
TEST(waits_for_the_stream) {
  test::running() = "waits for the stream";
  Node node("dgx_a100", {{"memory", "256MiB"}}, true, test::kHeld);
  Buffer a(0, kBytes), host(kPinned, kBytes);
  test::CurrentContext context(0);
  {
    Stream stream, other;
    CUdeviceptr flag = 0;
    CU(cuMemAlloc(&flag, 4));
    CU(cuMemsetD32(flag, 0, 1));
    CU(cuStreamWaitValue32(stream.handle, flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU(cuMemsetD8Async(a.at(), 1, kBytes, other.handle));
    CU(cuStreamSynchronize(other.handle));
    std::memset(host.data(), 7, kBytes);
    const uint64_t id = Call(a, 0, host, 0, kBytes).on(stream.handle, 0).start();
    CHECK(id != 0);
    GIVES(GLAKE_BUSY_TIMEOUT, glake_copy_wait(id, 20'000'000));
    CHECK(glake_copy_done(id) == 0);
    CHECK(all(a, 1));
    // Another stream waits for the transfer. A transfer that is in no stream overtakes it.
    Buffer c(1, kBytes), late(kPinned, kBytes);
    OK(glake_copy_stream_wait(id, 0, other.handle));
    CU(cuMemcpyDtoHAsync(late.data(), a.at(), kBytes, other.handle));
    test::finish(Call(c, 0, host, 0, kBytes).start());
    CHECK(all(c, 7) && all(a, 1));
    Stream third;
    CU(cuStreamWriteValue32(third.handle, flag, 1, 0));
    CU(cuStreamSynchronize(third.handle));
    OK(glake_copy_wait(id, test::kForever));
    CHECK(all(a, 7));
    CU(cuStreamSynchronize(other.handle));
    CHECK(all(late, 7));
    uint64_t done = 0, total = 0;
    OK(glake_copy_progress(id, &done, &total));
    CHECK(done == kBytes && total == kBytes);
    OK(glake_copy_release(id));
    // The transfer is cancelled before its turn. The stream goes on, and nothing is written.
    CU(cuMemsetD32(flag, 0, 1));
    CU(cuStreamWaitValue32(stream.handle, flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
    std::memset(host.data(), 9, kBytes);
    const uint64_t lost = Call(a, 0, host, 0, kBytes).on(stream.handle, 0).start();
    CHECK(lost != 0);
    OK(glake_copy_cancel(lost));
    GIVES(GLAKE_COPY_CANCELLED, glake_copy_wait(lost, test::kForever));
    CU(cuStreamWriteValue32(third.handle, flag, 1, 0));
    CU(cuStreamSynchronize(stream.handle));
    CHECK(all(a, 7));
    OK(glake_copy_release(lost));
    CU(cuMemFree(flag));
  }
}

// A graph can hold a plain copy, and no relays.
TEST(captured) {
  test::running() = "captured";
  Node node("dgx_a100", {{"memory", "256MiB"}}, true, test::kHeld);
  Buffer a(0, kBytes), host(kPinned, kBytes);
  test::CurrentContext context(0);
  {
    Stream stream;
    CU(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_GLOBAL));
    const uint64_t id = Call(a, 0, host, 0, kBytes).on(stream.handle, 0).start();
    CHECK_TEXT(id != 0, test::last_error());
    CHECK(test::result_of(id).find("\"captured\": true") != std::string::npos);
    const uint64_t none =
        Call(a, 0, host, 0, kBytes).on(stream.handle, 0).flags(GLAKE_COPY_RELAYED).start();
    CHECK(none == 0 && glake_last_error(nullptr, 0) == GLAKE_COPY_REFUSED);
    CUgraph graph = nullptr;
    CU(cuStreamEndCapture(stream.handle, &graph));
    CHECK(graph != nullptr);
    CU(cuGraphDestroy(graph));
  }
}

// The driver has no stream waits for values. So the transfer is one plain copy in stream order, and
// its result says why.
TEST(no_waits) {
  test::running() = "a driver without stream waits";
  for (bool busy : {false, true}) {
    Node node("dgx_a100", {{"memory", "256MiB"}}, true, test::kHeld);
    Buffer a(0, kBytes), host(kPinned, kBytes);
    test::CurrentContext context(0);
    Stream stream;
    if (busy) CU(cuMemsetD8Async(a.at(), 3, kBytes, stream.handle));
    CHECK(simcuda_fail("cuStreamWaitValue32", 1, CUDA_ERROR_NOT_SUPPORTED, -1) == 0);
    const uint64_t id =
        Call(host, 0, a, 0, kBytes).on(stream.handle, 0).flags(GLAKE_COPY_TRACKED).start();
    CHECK_TEXT(id != 0, test::last_error());
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
    CU(cuMemsetD8Async(a.at(), 4, kBytes, stream.handle));
    OK(glake_copy_wait(id, test::kForever));
    if (busy) CHECK(all(host, 3));
    const std::string result = test::result_of(id);
    CHECK_TEXT(result.find("waits for a value") != std::string::npos, result);
    OK(glake_copy_release(id));
    CU(cuStreamSynchronize(stream.handle));
    CHECK(test::violations() == "[]");
  }
}

TEST(closes_with_a_stream_that_waits) {
  test::running() = "close while a stream waits";
  Node node("dgx_a100", {{"memory", "256MiB"}}, true, test::kHeld);
  Buffer a(0, kBytes), host(kPinned, kBytes);
  test::CurrentContext context(0);
  {
    Stream stream, other;
    CUdeviceptr flag = 0;
    CU(cuMemAlloc(&flag, 4));
    CU(cuMemsetD32(flag, 0, 1));
    CU(cuStreamWaitValue32(stream.handle, flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(Call(a, 0, host, 0, kBytes).on(stream.handle, 0).start() != 0);
    GIVES(GLAKE_BUSY_TIMEOUT, glake_transfer_close());
    CU(cuStreamWriteValue32(other.handle, flag, 1, 0));
    CU(cuStreamSynchronize(other.handle));
    OK(glake_transfer_close());
    CU(cuStreamSynchronize(stream.handle));
    CU(cuMemFree(flag));
  }
}

TEST(chains) {
  for (int seed = 1; seed <= 3; ++seed) chain("dgx_a100", seed, "held");
}

TEST(chains_over_nvlink) { chain("dgx1v", 4, "held"); }

TEST(enqueued_chains) {
  for (int seed = 1; seed <= 3; ++seed) chain("dgx_a100", seed, "enqueued");
  chain("dgx1v", 4, "enqueued");
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
