// Plain copies that are timed together, as the probe of a topology does. The tests check times and
// bounds, and that nothing is left behind when driver calls fail or copies stand still.
#include "transfer_play.h"

using test::kMiB;
using test::Node;

namespace {

constexpr int kRepeats = 3;

glake_timed_copy to_gpu(int gpu, int socket) { return {gpu, 0, GLAKE_HOST, socket}; }
glake_timed_copy to_host(int gpu, int socket) { return {GLAKE_HOST, socket, gpu, 0}; }

// The rate of each copy in GB/s, between the end of its first repeat and the end of its last. Each
// repeat has a latency of 8 us.
std::vector<double> rates(const std::vector<glake_timed_copy>& copies, size_t bytes = 16 * kMiB) {
  std::vector<uint64_t> ns(copies.size() * kRepeats);
  OK(glake_time_copies(copies.data(), copies.size(), bytes, kRepeats, ns.data()));
  std::vector<double> found;
  for (size_t i = 0; i < copies.size(); ++i) {
    const uint64_t took = ns[i * kRepeats + kRepeats - 1] - ns[i * kRepeats];
    const uint64_t moving = took - (kRepeats - 1) * 8000;
    found.push_back(static_cast<double>(bytes) * (kRepeats - 1) / static_cast<double>(moving));
  }
  return found;
}

bool near(double got, double wanted) { return std::abs(got / wanted - 1) < 0.01; }

TEST(times_are_the_links) {
  test::running() = "times";
  Node node("dgx_a100", {{"phantom", "1"}});
  CHECK(near(rates({to_gpu(0, 0)})[0], 23.75) && near(rates({to_host(7, 1)})[0], 20.35));
  const std::vector<double> both = rates({to_gpu(0, 0), to_gpu(1, 0)});  // one uplink
  CHECK(near(both[0], 23.75 / 2) && near(both[1], 23.75 / 2));
  const std::vector<double> apart = rates({to_gpu(0, 0), to_gpu(2, 0), {5, 0, 4, 0}});
  CHECK(near(apart[0], 23.75) && near(apart[1], 23.75) && near(apart[2], 276));
  CHECK(simcuda_set_link("s0", "u0", 10) == 0);
  CHECK(near(rates({to_gpu(1, 0)})[0], 10));
  OK(glake_time_copies(nullptr, 0, 0, 0, nullptr));
  CHECK(test::number_in(test::ledger(), "host_blocks") == 0);
  CHECK(near(rates({to_gpu(2, 0)})[0], 23.75));  // and once more
}

TEST(bounds) {
  test::running() = "bounds";
  Node node("dgx1v", {{"memory", "64MiB"}});
  uint64_t ns[65 * 64];
  const glake_timed_copy good = to_gpu(0, 0);
  const auto refused = [&](const glake_timed_copy& copy, size_t count, uint64_t bytes,
                           int repeats) {
    const std::vector<glake_timed_copy> copies(count, copy);
    return glake_time_copies(copies.data(), count, bytes, repeats, ns);
  };
  GIVES(GLAKE_INVALID_ARGUMENT, refused(good, 65, 1, 1));
  GIVES(GLAKE_INVALID_ARGUMENT, refused(good, 1, 0, 1));
  GIVES(GLAKE_INVALID_ARGUMENT, refused(good, 1, 32 * kMiB + 1, 1));
  GIVES(GLAKE_INVALID_ARGUMENT, refused(good, 1, 1, 0));
  GIVES(GLAKE_INVALID_ARGUMENT, refused(good, 1, 1, 65));
  GIVES(GLAKE_INVALID_ARGUMENT, refused(to_gpu(0, 2), 1, 1, 1));
  GIVES(GLAKE_INVALID_ARGUMENT, refused(to_gpu(0, -1), 1, 1, 1));
  GIVES(GLAKE_INVALID_ARGUMENT, refused({GLAKE_HOST, 0, GLAKE_HOST, 0}, 1, 1, 1));
  GIVES(GLAKE_INVALID_DEVICE, refused(to_gpu(8, 0), 1, 1, 1));
  CHECK(glake_time_copies(&good, 1, 1, 1, nullptr) != GLAKE_OK);
  OK(refused(good, 1, 32 * kMiB, 2));
}

// Copies that stand still end with an error. Their memory stays until they are done.
TEST(standing_still) {
  test::running() = "standing still";
  Node node("gb200_tray", {{"phantom", "1"}});
  const glake_timed_copy copy{1, 0, 0, 0};
  uint64_t ns[2];
  OK(glake_time_copies(&copy, 1, kMiB, 2, ns));
  CHECK(simcuda_set_link("g0", "N", 0) == 0);
  GIVES(GLAKE_BUSY_TIMEOUT, glake_time_copies(&copy, 1, kMiB, 2, ns));
  GIVES(GLAKE_BUSY_TIMEOUT, glake_time_copies(&copy, 1, kMiB, 2, ns));  // the first call's copies
  GIVES(GLAKE_BUSY_TIMEOUT, glake_time_copies(nullptr, 0, 0, 0, nullptr));
  CHECK(simcuda_set_link("g0", "N", 700) == 0);
  OK(glake_time_copies(&copy, 1, kMiB, 2, ns));
}

TEST(each_call) {
  for (int64_t times : {int64_t{1}, int64_t{-1}}) {
    const int step = (times == 1 ? 1 : 5) * test::kShortened;
    for (int64_t k = 1;; k += step) {
      test::running() = "call " + std::to_string(k) + " fails " + std::to_string(times);
      Node node("dgx1v", {{"memory", "64MiB"}, {"phantom", "1"}});
      node.count_streams = false;
      const std::vector<glake_timed_copy> copies{to_gpu(0, 0), to_host(0, 1), {1, 0, 0, 0}};
      uint64_t ns[6];
      const int64_t before = simcuda_calls("*");
      CHECK(simcuda_fail("*", k, CUDA_ERROR_UNKNOWN, times) == 0);
      const int end = glake_time_copies(copies.data(), copies.size(), kMiB, 2, ns);
      const bool fired = simcuda_calls("*") - before >= k;
      CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
      CHECK_TEXT(end == GLAKE_OK || end == GLAKE_DRIVER_ERROR, std::to_string(end));
      OK(glake_time_copies(copies.data(), copies.size(), kMiB, 2, ns));
      OK(glake_time_copies(nullptr, 0, 0, 0, nullptr));
      CHECK(test::number_in(test::ledger(), "host_blocks") == 0);
      if (!fired) break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
