// Any mix of sizes, offsets, streams, directions and failing paths, and several threads at once.
// Every byte is right and written once, no link is over its capacity, and nothing is left behind.
#include <atomic>
#include <memory>
#include <thread>

#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::kKiB;
using test::kMiB;
using test::kPinned;
using test::Node;

namespace {

struct Copy {
  std::unique_ptr<Buffer> dst, src;
  size_t to, from, bytes;
  uint64_t id, seed;
  bool ordered;
};

// `held`: ordered copies go around failing paths too, like copies without a stream.
void random_mix(const char* preset, uint64_t seed, bool faults, bool held) {
  test::running() = std::string("mix on ") + preset + ", seed " + std::to_string(seed);
  // Where copies fail, the GPU's contexts live on, so that failed chunks can be sent again.
  const std::string sticky = faults ? "0" : "1";
  Node node(preset,
            {{"memory", "512MiB"}, {"seed", std::to_string(seed)}, {"sticky_errors", sticky}}, true,
            {{"copy_order", held ? "held" : "enqueued"}});
  test::Dice dice(seed);
  const auto gpus = static_cast<uint64_t>(node.gpus());
  test::CurrentContext context(0);
  CUstream streams[2];
  for (CUstream& s : streams) CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  for (int round = 0; round < 3; ++round) {
    std::vector<Copy> copies(dice(2, 5));
    for (Copy& copy : copies) {
      copy.bytes = dice.chance(25) ? dice(1, 64 * kKiB) : dice(kMiB, 20 * kMiB);
      copy.to = dice(0, 4095);
      copy.from = dice(0, 4095);
      copy.seed = dice(1, 1000);
      int dst = static_cast<int>(dice(0, gpus - 1)), src = static_cast<int>(dice(0, gpus - 1));
      (dice.chance(50) ? dst : src) = kPinned;
      if (dice.chance(20)) dst = 0, src = static_cast<int>(gpus - 1);
      copy.dst = std::make_unique<Buffer>(dst, copy.bytes + 4096);
      copy.src = std::make_unique<Buffer>(src, copy.bytes + 4096);
      copy.dst->fill(1);
      copy.src->fill(copy.seed);
      CHECK(simcuda_watch_landings(copy.dst->at(), copy.dst->bytes()) == 0);
    }
    for (int i = 0; faults && i < 2; ++i) {
      const std::string gpu = "g" + std::to_string(dice(1, gpus - 1));
      const int k = static_cast<int>(dice(1, 5));
      if (dice.chance(50)) {
        CHECK(simcuda_fail_copy("host", gpu.c_str(), k, CUDA_ERROR_UNKNOWN, 2) == 0);
      } else {
        CHECK(simcuda_stall_copy("*", gpu.c_str(), k, dice(1, 50) * 1'000'000) == 0);
      }
    }
    for (Copy& copy : copies) {
      Call call(*copy.dst, copy.to, *copy.src, copy.from, copy.bytes);
      copy.ordered = dice.chance(50);
      if (copy.ordered) call.on(streams[dice(0, 1)], 0);
      copy.id = call.start();
      CHECK_TEXT(copy.id != 0, test::last_error());
    }
    for (Copy& copy : copies) {
      const int end = glake_copy_wait(copy.id, test::kForever);
      // A plain copy of the driver that fails is not repeated: that is up to the caller.
      const bool fails = faults && ((copy.id >> 63) != 0 || (copy.ordered && !held));
      CHECK_TEXT(end == GLAKE_OK || fails, test::last_error());
      if (end == GLAKE_OK && !fails) {
        CHECK(copy.dst->holds(copy.seed, copy.to, copy.bytes, copy.from));
        CHECK(simcuda_landed(copy.dst->at(copy.to), copy.bytes, 1) == copy.bytes);
      }
      test::await_settled(copy.id);
      OK(glake_copy_release(copy.id));
    }
    CHECK(simcuda_fail_copy(nullptr, nullptr, 1, 0, 1) == 0);
    for (CUstream s : streams) cuStreamSynchronize(s);
    CHECK(simcuda_watch_landings(0, 0) == 0);
  }
  for (CUstream s : streams) test::end_stream(s);
  CHECK(test::violations() == "[]");
  const std::string edges =
      test::text_of([](char* to, size_t room) { return simcuda_edges(to, room, 0); });
  for (size_t at = edges.find("\"load\": "); at != std::string::npos;
       at = edges.find("\"load\": ", at + 1)) {
    CHECK_TEXT(std::strtod(edges.c_str() + at + 8, nullptr) <= 1.0001, edges.substr(at, 80));
  }
}

// Threads copy, wait, cancel and ask, all at once. This case is for the race detector.
void threads(const char* schedule) {
  test::running() = std::string("threads, ") + schedule;
  Node node("dgx_a100", {{"memory", "256MiB"}, {"schedule", schedule}});
  std::atomic<int> failed{0};
  auto work = [&](int me) {
    Buffer dst(me, 12 * kMiB), src(kPinned, 12 * kMiB);
    src.fill(static_cast<uint64_t>(me));
    for (int i = 0; i < 4; ++i) {
      const uint64_t id = Call(dst, 0, src, 0, 12 * kMiB).flags(GLAKE_COPY_RELAYED).start();
      if (i == 3) glake_copy_cancel(id);
      test::transfer_stats();
      test::result_of(id);
      const int end = glake_copy_wait(id, test::kForever);
      const bool expected = end == GLAKE_OK || (i == 3 && end == GLAKE_COPY_CANCELLED);
      const bool right = end != GLAKE_OK || dst.holds(static_cast<uint64_t>(me), 0, 12 * kMiB, 0);
      if (!expected || !right) {
        ++failed;
        std::printf("thread %d, copy %d: ended with %d, %s; %s\n", me, i, end,
                    right ? "bytes as they should be" : "WRONG BYTES", test::last_error().c_str());
      }
      test::await_settled(id);
      glake_copy_release(id);
    }
  };
  std::vector<std::thread> all;
  for (int me = 0; me < 3; ++me) all.emplace_back(work, me);
  for (std::thread& thread : all) thread.join();
  CHECK(failed == 0);
}

// Two copies at once, also in both directions, are fair and near what the machine can do.
TEST(together) {
  test::running() = "two at once";
  Node node("dgx_a100", {{"phantom", "1"}, {"host_node", "interleave"}});
  constexpr size_t kBytes = 512 * kMiB;
  Buffer a(0, kBytes), b(4, kBytes), from(kPinned, kBytes), other(kPinned, kBytes);
  auto both = [&](Call&& first, Call&& second, double bound, double part) {
    const uint64_t begin = simcuda_now_ns();
    simcuda_thread(1);  // time stands still between the two starts, however slow this machine is
    const uint64_t one = first.start(), two = second.start();
    simcuda_thread(0);
    OK(glake_copy_wait(one, test::kForever));
    OK(glake_copy_wait(two, test::kForever));
    const auto time = static_cast<double>(simcuda_now_ns() - begin);
    const auto rate = [](uint64_t id) {
      return static_cast<double>(test::number_in(test::result_of(id), "time_ns"));
    };
    const double x = 1 / rate(one), y = 1 / rate(two);
    const double jain = (x + y) * (x + y) / (2 * (x * x + y * y));
    std::printf("together %.1f GB/s of %.1f, Jain %.3f\n", 2.0 * kBytes / time, bound, jain);
    CHECK(2.0 * kBytes / time >= part * bound && jain >= 0.95);
    OK(glake_copy_release(one));
    OK(glake_copy_release(two));
  };
  both(Call(a, 0, from, 0, kBytes), Call(b, 0, other, 0, kBytes), 95.0, 0.9);
  both(Call(a, 0, from, 0, kBytes), Call(other, 0, b, 0, kBytes), 152.0, 0.9);
}

void random_mixes(bool held) {
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(12 / test::kShortened + 1); ++seed) {
    random_mix(seed % 2 == 0 ? "dgx1v" : "dgx_a100", seed, seed % 3 == 1, held);
  }
}

TEST(mixes) { random_mixes(false); }
TEST(mixes_by_held_streams) { random_mixes(true); }
TEST(threads_lazily) { threads("lazy"); }
TEST(threads_threaded) { threads("threaded"); }

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
