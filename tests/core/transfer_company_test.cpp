// Tests copies that ran beside others before. Copies to all GPUs need all links, and gain nothing
// by relays. A copy that runs alone again uses relays again.
#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::kMiB;
using test::kPinned;
using test::Node;

namespace {

constexpr size_t kBytes = 64 * kMiB;

// A stream and memory at both ends of each of the GPUs' copies.
class Copies {
 public:
  explicit Copies(int gpus) {
    for (int gpu = 0; gpu < gpus; ++gpu) {
      CU(cuDevicePrimaryCtxRetain(&contexts_[gpu], gpu));
      CU(cuCtxSetCurrent(contexts_[gpu]));
      streams_.emplace_back();
      CU(cuStreamCreate(&streams_.back(), CU_STREAM_NON_BLOCKING));
      device_.push_back(std::make_unique<Buffer>(gpu, kBytes));
      host_.push_back(std::make_unique<Buffer>(kPinned, kBytes));
      for (size_t at = 0; at < kBytes; at += 4 * kMiB) {  // 4 MiB of each socket in turn
        void* const piece = reinterpret_cast<void*>(host_.back()->at(at));
        CHECK(simcuda_place_host(piece, 4 * kMiB, static_cast<int>(at / (4 * kMiB) % 2)) == 0);
      }
    }
  }
  ~Copies() {
    for (size_t gpu = 0; gpu < streams_.size(); ++gpu) {
      CU(cuCtxSetCurrent(contexts_[gpu]));
      test::end_stream(streams_[gpu]);
      CU(cuDevicePrimaryCtxRelease(static_cast<int>(gpu)));
    }
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  uint64_t begin(int gpu, size_t bytes = kBytes) {
    const auto at = static_cast<size_t>(gpu);
    return Call(*device_[at], 0, *host_[at], 0, bytes).on(streams_[at], gpu).start();
  }
  // Whether the copy went over a relay.
  static bool relayed(uint64_t id) {
    return test::finish(id).find("\"relayed\": true") != std::string::npos;
  }
  // Begins the first `gpus` copies together. Returns how many went over a relay.
  int together(int gpus, size_t bytes = kBytes) {
    std::vector<uint64_t> ids;
    for (int gpu = 0; gpu < gpus; ++gpu) ids.push_back(begin(gpu, bytes));
    int count = 0;
    for (const uint64_t id : ids) count += relayed(id) ? 1 : 0;
    return count;
  }

 private:
  CUcontext contexts_[test::kGpus] = {};
  std::vector<CUstream> streams_;
  std::vector<std::unique_ptr<Buffer>> device_, host_;
};

const test::Options kPhantom = {{"phantom", "1"}};

}  // namespace

// The first copies do not know that others follow. The second time they know.
TEST(a_loop_over_all_gpus) {
  Node node("hgx_h100_h200", kPhantom);
  Copies copies(node.gpus());
  CHECK(copies.together(node.gpus()) != 0);
  CHECK(copies.together(node.gpus()) == 0);
  const uint64_t begin = simcuda_now_ns();
  CHECK(copies.together(node.gpus()) == 0);
  const auto ns = static_cast<double>(simcuda_now_ns() - begin);
  CHECK(kBytes / ns > 0.98 * 55);  // GB/s of each, as fast as its own link
}

// Two copies leave links free. Both use relays, however often they are made.
TEST(two_of_eight) {
  Node node("hgx_h100_h200", kPhantom);
  Copies copies(node.gpus());
  for (int round = 0; round < 4; ++round) CHECK(copies.together(2) == 2);
}

// When the other copies stay away, the first copy alone does not use relays, and the next one does.
TEST(alone_again) {
  Node node("hgx_h100_h200", kPhantom);
  Copies copies(node.gpus());
  for (int round = 0; round < 3; ++round) copies.together(node.gpus());
  CHECK(!Copies::relayed(copies.begin(0)));
  CHECK(Copies::relayed(copies.begin(0)));
}

// Company at one size says nothing about copies of a much larger size.
TEST(another_size) {
  Node node("hgx_h100_h200", kPhantom);
  Copies copies(node.gpus());
  for (int round = 0; round < 3; ++round) copies.together(node.gpus(), 16 * kMiB);
  CHECK(Copies::relayed(copies.begin(0)));
}

// Copies that wait for the one before are not together. Each has all links.
TEST(one_after_another) {
  Node node("hgx_h100_h200", kPhantom);
  Copies copies(node.gpus());
  for (int round = 0; round < 3; ++round) {
    for (int gpu = 0; gpu < node.gpus(); ++gpu) CHECK(Copies::relayed(copies.begin(gpu)));
  }
}

// Half of the memory is behind the link between the sockets, which is slower than two GPUs' links.
// So relays help, although all GPUs copy.
TEST(where_company_leaves_a_gain) {
  Node node("gb200_tray", kPhantom);
  Copies copies(node.gpus());
  for (int round = 0; round < 3; ++round) CHECK(copies.together(node.gpus()) != 0);
}

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
