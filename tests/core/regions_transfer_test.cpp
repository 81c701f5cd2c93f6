// The transfer engine pauses and resumes regions, over every path of the node.
#include <atomic>
#include <thread>

#include "transfer_play.h"

using test::kMiB;

namespace {

glake_pool region() {
  glake_pool pool{};
  OK(glake_region_pool("weights", &pool));
  return pool;
}

TEST(over_every_path) {
  test::running() = "over every path";
  test::Node node("dgx1v", {{"memory", "256MiB"}});
  const test::CurrentContext current;
  void* blocks[3] = {};
  const size_t bytes[3] = {90 * kMiB, 33 * kMiB + 512, 12 * test::kKiB};
  for (int i = 0; i < 3; ++i) {
    blocks[i] = glake_pool_malloc(bytes[i], 0, nullptr, region());
    CHECK(blocks[i] != nullptr);
    CU(cuMemsetD32(reinterpret_cast<CUdeviceptr>(blocks[i]), static_cast<unsigned>(i + 1),
                   bytes[i] / 4));
  }
  auto copied = [] {
    return test::text_of([](char* to, size_t room) { return glake_transfer_stats(to, room); });
  };
  const std::string before = copied();
  OK(glake_region_pause(0, region(), GLAKE_REGION_HOST, nullptr));
  CHECK(test::number_in(test::ledger(0), "used_bytes") <= static_cast<int64_t>(64 * kMiB));
  OK(glake_region_resume(0, region(), 1));
  // The engine copied the two large blocks three times: out, back, and once more to verify them.
  const std::string after = copied();
  const auto large = static_cast<int64_t>(bytes[0] + bytes[1]);
  CHECK_TEXT(test::number_in(after, "bytes") - test::number_in(before, "bytes") == 3 * large,
             after);
  for (int i = 0; i < 3; ++i) {
    std::vector<uint32_t> words(bytes[i] / 4);
    CU(cuMemcpyDtoH(words.data(), reinterpret_cast<CUdeviceptr>(blocks[i]), bytes[i]));
    for (uint32_t word : words) CHECK(word == static_cast<uint32_t>(i + 1));
    OK(glake_free(blocks[i]));
  }
  OK(glake_host_empty_cache());
}

// A transfer slows down all others on the node while it is under way.
TEST(few_transfers_at_once) {
  test::running() = "few transfers at once";
  const test::Node node("dgx_a100", {{"memory", "3GiB"}, {"phantom", "1"}});
  constexpr int64_t kFew = 4;
  const glake_pool pool = region();
  void* block = glake_pool_malloc(2048 * kMiB, 0, nullptr, pool);  // eight groups
  CHECK(block != nullptr);
  std::atomic<bool> ended{false};
  int64_t most = 0;
  std::thread watch([&] {
    while (!ended) {
      const std::string now =
          test::text_of([](char* to, size_t room) { return glake_transfer_stats(to, room); });
      most = std::max(most, test::number_in(now, "running"));
    }
  });
  OK(glake_region_pause(0, pool, GLAKE_REGION_HOST, nullptr));
  OK(glake_region_resume(0, pool, 0));
  ended = true;
  watch.join();
  CHECK(0 < most && most <= kFew);
  OK(glake_free(block));
  OK(glake_host_empty_cache());
}

// A copy of any size, at either end, says which region to resume, and moves nothing.
TEST(not_while_paused) {
  test::running() = "not while paused";
  test::Node node("dgx1v", {{"memory", "64MiB"}});
  void* block = glake_pool_malloc(2 * kMiB, 0, nullptr, region());
  CHECK(block != nullptr);
  const auto gpu = reinterpret_cast<uint64_t>(block);
  {
    const test::Buffer host(test::kPinned, 2 * kMiB);
    auto start = [&](bool up, int device, uint64_t bytes, uint64_t offset) {
      const uint64_t at = gpu + offset, to = up ? at : host.at(), from = up ? host.at() : at;
      return test::Call({{to, from, bytes}}, up ? device : GLAKE_HOST, up ? GLAKE_HOST : device)
          .flags(GLAKE_COPY_TRACKED)
          .start();
    };
    const struct {
      int device;
      uint64_t bytes, offset;
    } shapes[] = {{0, 2 * kMiB, 0}, {GLAKE_ASK, kMiB, 512}, {0, 512, 0}, {0, 1, 2 * kMiB - 1}};
    for (const int to : {GLAKE_REGION_HOST, GLAKE_REGION_DISCARD}) {
      OK(glake_region_pause(0, region(), to, nullptr));
      for (const bool up : {true, false}) {
        for (const auto& shape : shapes) {
          CHECK(start(up, shape.device, shape.bytes, shape.offset) == 0);
          CHECK(glake_last_error(nullptr, 0) == GLAKE_REGION_PAUSED);
          const std::string said = test::last_error();
          CHECK_TEXT(said.find("region \"weights\" on cuda:0") != std::string::npos, said);
          CHECK_TEXT(said.find("glake.resume(\"weights\")") != std::string::npos, said);
        }
      }
      int device = 0, known = 0;
      GIVES(GLAKE_REGION_PAUSED, glake_place_of(block, &device, &known));
      OK(glake_region_resume(0, region(), 0));
      for (const auto& shape : shapes) test::finish(start(true, 0, shape.bytes, shape.offset));
    }
  }
  OK(glake_free(block));
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
