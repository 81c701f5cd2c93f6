// Regions paused and resumed by the transfer engine, over every path of the node.
#include "transfer_play.h"

using test::kMiB;

namespace {

glake_pool region() {
  glake_pool pool{};
  OK(glake_region_pool("weights", &pool));
  return pool;
}

void over_every_path() {
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
  // There, back and read again: two of the blocks are large enough to be the engine's.
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

}  // namespace

int main() {
  over_every_path();
  return 0;
}
