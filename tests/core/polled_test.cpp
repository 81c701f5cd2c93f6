// Completion that is seen only by asking, as with a GPU's driver (the simulator's option
// completion=polled). The tests check what questions and sleeps cost on the clock, and that copies
// lose little by them.
#include <sys/prctl.h>

#include <filesystem>
#include <map>

#include "transfer_play.h"

using test::kMiB;
using test::Node;

namespace {

// These machines have no driver lock, so that the cost of questions is seen apart from it.
const test::Options kInstant = {
    {"phantom", "1"}, {"host_node", "interleave"}, {"driver_lock", "0"}};
const test::Options kPolled = {
    {"phantom", "1"}, {"host_node", "interleave"}, {"driver_lock", "0"}, {"completion", "polled"}};

uint64_t slept(uint64_t ns) {
  const uint64_t begin = simcuda_now_ns();
  CHECK(simcuda_sleep(ns) == 0);
  return simcuda_now_ns() - begin;
}

TEST(a_sleep_takes_the_timer_slack) {
  test::running() = "sleep";
  Node node("dgx1v", kPolled);
  CHECK(simcuda_polled() == 1);
  CHECK(prctl(PR_SET_TIMERSLACK, 50000UL) == 0);
  CHECK(slept(10'000) == 68'000);
  CHECK(prctl(PR_SET_TIMERSLACK, 1UL) == 0);
  CHECK(slept(10'000) == 18'001);
  CHECK(prctl(PR_SET_TIMERSLACK, 50000UL) == 0);
}

// Each question moves the clock of a thread that only asks.
TEST(a_question_takes_its_price) {
  test::running() = "question";
  Node node("dgx1v", kPolled);
  test::Buffer dst(0, kMiB), src(test::kPinned, kMiB);
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUcontext context = nullptr;
  CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(cuCtxPushCurrent(context) == CUDA_SUCCESS);
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  CHECK(cuMemcpyAsync(dst.at(), src.at(), kMiB, stream) == CUDA_SUCCESS);
  CHECK(cuEventRecord(event, stream) == CUDA_SUCCESS);
  double first = 0, further = 0;
  CHECK(simcuda_price("cuEventQuery", &first, &further) == 0);
  const uint64_t begin = simcuda_now_ns();
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(simcuda_now_ns() - begin == static_cast<uint64_t>(first * 1000));
  int questions = 1;
  while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) ++questions;
  const double took_us = static_cast<double>(simcuda_now_ns() - begin) / 1000;
  CHECK(questions > 10 && std::abs(took_us - first * (questions + 1)) < first);
  CHECK(cuEventDestroy(event) == CUDA_SUCCESS && cuStreamDestroy(stream) == CUDA_SUCCESS);
  CHECK(cuCtxPopCurrent(&context) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
}

double rate(const test::Options& simulator, size_t bytes) {
  Node node("hgx_h100_h200", simulator);
  test::Buffer dst(0, bytes), src(test::kPinned, bytes);
  const uint64_t begin = simcuda_now_ns();
  test::finish(test::Call(dst, 0, src, 0, bytes).start());
  const uint64_t end = simcuda_now_ns();
  return static_cast<double>(bytes) / static_cast<double>(end - begin);
}

TEST(copies_lose_little) {
  test::running() = "rates";
  CHECK(prctl(PR_SET_TIMERSLACK, 50000UL) == 0);
  CHECK(rate(kPolled, 1024 * kMiB) > 0.98 * rate(kInstant, 1024 * kMiB));
  CHECK(rate(kPolled, 256 * kMiB) > 0.95 * rate(kInstant, 256 * kMiB));
  CHECK(rate(kPolled, 16 * kMiB) > 3 * 53.5);  // 53.5 GB/s is a plain copy over one link
  CHECK(prctl(PR_GET_TIMERSLACK) == 50000);    // the caller's own timer slack is unchanged
}

TEST(contents_are_right) {
  test::running() = "contents";
  Node node("dgx_a100", {{"memory", "256MiB"}, {"completion", "polled"}});
  constexpr size_t kBytes = 48 * kMiB + 4096;
  test::Buffer dst(0, kBytes), src(test::kPinned, kBytes);
  src.fill(7);
  const uint64_t id = test::Call(dst, 0, src, 0, kBytes).start();
  CHECK(id != 0);
  OK(glake_copy_wait(id, test::kForever));
  CHECK(test::result_of(id).find("cpu>cuda:2>cuda:0") != std::string::npos);  // relayed in part
  OK(glake_copy_release(id));
  CHECK(dst.holds(7, 0, kBytes, 0));
}

// How often each of glake's threads has gone to sleep, by thread.
std::map<std::string, long> sleeps() {
  std::map<std::string, long> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name, line;
    std::ifstream(task.path() / "comm") >> name;
    if (name.rfind("glake", 0) != 0) continue;
    std::ifstream status(task.path() / "status");
    while (std::getline(status, line)) {
      long count = 0;
      if (std::sscanf(line.c_str(), "voluntary_ctxt_switches: %ld", &count) == 1) {
        found[name + " " + task.path().filename().string()] = count;
      }
    }
  }
  return found;
}

// Threads that have nothing to do sleep. They neither wake up nor ask the driver. The test would
// see a thread that polls every 100 ms.
TEST(idle_threads_do_not_wake) {
  for (const char* order : {"enqueued", "held"}) {
    test::running() = order;
    test::Options simulator = kPolled;
    Node node("hgx_h100_h200", kPolled, true, {{"copy_order", order}});
    constexpr size_t kBytes = 64 * kMiB;
    test::Buffer dst(0, kBytes), src(test::kPinned, kBytes);
    CUstream stream = nullptr;
    test::CurrentContext context(0);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    test::finish(test::Call(dst, 0, src, 0, kBytes).on(stream, 0).start());
    test::finish(test::Call(dst, 0, src, 0, kBytes).start());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until they are asleep
    const auto before = sleeps();
    const int64_t calls = simcuda_calls("*");
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    CHECK(before.size() >= 8);
    CHECK(sleeps() == before);
    CHECK(simcuda_calls("*") == calls);
    test::end_stream(stream);
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
