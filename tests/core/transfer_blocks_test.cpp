// Copies of many small blocks use kernels where these pay. Every byte is right at every alignment,
// also with faults, with drivers that run no kernels, and in captures. A kernel never gets memory
// that it may not access.
#include <algorithm>

#include "plan/block_ways.h"
#include "transfer/call/overlap.h"
#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::kKiB;
using test::kMiB;
using test::kPageable;
using test::kPinned;
using test::Node;

namespace {

uint64_t launches() {
  return static_cast<uint64_t>(test::number_in(test::transfer_stats(), "kernel_launches"));
}

// Blocks of one buffer that are copied to another buffer in another order. At both ends there are
// gaps of `gap` bytes between them.
struct Blocks {
  Blocks(int to, int from, size_t count, size_t block, size_t gap, test::Dice* dice,
         bool packed_dst = false, bool packed_src = false)
      : count(count),
        block(block),
        dst_step(block + (packed_dst ? 0 : gap)),
        src_step(block + (packed_src ? 0 : gap)),
        dst(to, count * (block + gap) + kSpare),
        src(from, count * (block + gap) + kSpare) {
    order.resize(count);
    for (size_t i = 0; i < count; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937_64((*dice)(0, 1 << 20)));
    dst.fill(1);
    src.fill(2);
    to_offset = (*dice)(0, 15);
    from_offset = (*dice)(0, 15);
    for (size_t i = 0; i < count; ++i) {
      const size_t at = packed_dst ? i : order[i], of = packed_dst ? order[i] : i;
      parts.push_back(
          {dst.at(to_offset + at * dst_step), src.at(from_offset + of * src_step), block});
    }
  }
  std::string copy(unsigned flags = 0) {
    CHECK(simcuda_watch_landings(dst.at(), dst.bytes()) == 0);
    return test::finish(Call(parts, dst.device(), src.device()).flags(flags).start());
  }
  // Checks that every block is right and written once, and every other byte as it was.
  void check(bool once = true) {
    std::vector<bool> written(dst.bytes());
    for (const glake_copy_part& part : parts) {
      const size_t to = part.dst - dst.at(), from = part.src - src.at();
      CHECK(dst.holds(2, to, part.bytes, from));
      for (size_t i = 0; i < part.bytes; ++i) written[to + i] = true;
    }
    for (size_t i = 0; i < dst.bytes(); ++i) {
      CHECK(written[i] || dst.data()[i] == Buffer::byte(1, i));
    }
    if (once && dst.device() >= 0) {
      CHECK(simcuda_landed(dst.at(), dst.bytes(), 1) == count * block);
      CHECK(simcuda_landed(dst.at(), dst.bytes(), -1) == 0);
    }
    CHECK(simcuda_watch_landings(0, 0) == 0);
  }

  static constexpr size_t kSpare = 64;
  size_t count, block, dst_step, src_step, to_offset = 0, from_offset = 0;
  Buffer dst, src;
  std::vector<size_t> order;
  std::vector<glake_copy_part> parts;
};

// Copies between all kinds of places, of odd sizes at odd addresses, over one path and over many.
TEST(every_byte) {
  for (const char* preset : {"dgx_a100", "gb200_tray", "a10_l40s_x8"}) {
    Node node(preset, {{"memory", "256MiB"}});
    test::Dice dice(7);
    const std::pair<int, int> ends[] = {{0, kPinned}, {kPinned, 1}, {1, 0}, {0, kPageable}};
    for (auto [to, from] : ends) {
      for (auto [count, block] : {std::pair<size_t, size_t>{900, 4099}, {400, 16 * kKiB}}) {
        for (int packed = 0; packed < 3; ++packed) {
          test::running() = std::string(preset) + ": " + std::to_string(count) + " blocks of " +
                            std::to_string(block) + ", " + std::to_string(from) + " to " +
                            std::to_string(to) + ", packed " + std::to_string(packed);
          const uint64_t before = launches();
          Blocks blocks(to, from, count, block, 48, &dice, packed == 1, packed == 2);
          const std::string result = blocks.copy();
          CHECK_TEXT(test::text_in(result, "state") == "done", result);
          blocks.check(from != kPageable);
          const bool host = to < 0 || from < 0;
          CHECK_TEXT(!host || launches() > before, result);
        }
      }
    }
    CHECK(test::number_in(test::transfer_stats(), "slots") == 0);
    CHECK(test::violations() == "[]");
  }
}

// A large chunk goes over the link by one plain copy, and a kernel moves its blocks on the GPU.
// That is done only where the pieces lie side by side at the host's end.
TEST(staged) {
  test::running() = "staged";
  Node node("a10_l40s_x8", {{"memory", "256MiB"}});
  test::Dice dice(19);
  for (auto [to, from] : {std::pair<int, int>{0, kPinned}, {kPinned, 1}}) {
    for (int packed = 0; packed < 3; ++packed) {
      test::running() = "staged from " + std::to_string(from) + " to " + std::to_string(to) +
                        ", packed " + std::to_string(packed);
      Blocks blocks(to, from, 2000, 16 * kKiB, 48, &dice, packed == 1, packed == 2);
      const uint64_t before = launches();
      const int64_t plain = simcuda_calls("cuMemcpyAsync");
      const std::string result = blocks.copy();
      CHECK_TEXT(test::text_in(result, "state") == "done", result);
      CHECK_TEXT(launches() > before, result);
      const bool beside = (packed == 1 && to < 0) || (packed == 2 && from < 0);
      CHECK((simcuda_calls("cuMemcpyAsync") > plain) == beside);
      blocks.check();
    }
  }
  CHECK(test::violations() == "[]");
}

// Large pieces, and a few small ones, are copied without a kernel.
TEST(only_where_they_pay) {
  test::running() = "only where they pay";
  Node node("dgx_a100", {{"memory", "256MiB"}});
  test::Dice dice(3);
  Blocks large(0, kPinned, 40, 512 * kKiB, 64, &dice);
  large.copy();
  large.check();
  CHECK(launches() == 0);
  Blocks few(0, kPinned, 8, 4 * kKiB, 64, &dice);
  few.copy();
  few.check();
  CHECK(launches() == 0);
}

// Where a path fails while kernels run, other paths take its chunks. A slow path is waited for.
TEST(faults) {
  test::running() = "faults";
  Node node("dgx_a100", {{"memory", "256MiB"}, {"sticky_errors", "0"}});
  test::Dice dice(5);
  for (auto [from, to] :
       {std::pair<const char*, const char*>{"host", "g2"}, {"g2", "g0"}, {"host", "g0"}}) {
    test::running() = std::string("a fault from ") + from + " to " + to;
    Blocks blocks(0, kPinned, 1500, 16 * kKiB, 16, &dice);
    CHECK(simcuda_fail_copy(from, to, 2, CUDA_ERROR_ECC_UNCORRECTABLE, 1) == 0);
    const std::string result = blocks.copy(GLAKE_COPY_RELAYED);
    CHECK_TEXT(test::text_in(result, "state") == "done", result);
    CHECK_TEXT(result.find("\"resent\": 1, \"refusals\"") != std::string::npos, result);
    blocks.check();
    CHECK(simcuda_fail_copy(nullptr, nullptr, 1, 0, 1) == 0);
  }
  test::running() = "a stall";
  Blocks blocks(0, kPinned, 1500, 16 * kKiB, 16, &dice);
  CHECK(simcuda_stall_copy("host", "g4", 1, 200'000'000) == 0);
  CHECK_TEXT(test::text_in(blocks.copy(), "state") == "done", "stalled");
  blocks.check();
  CHECK(simcuda_fail_copy(nullptr, nullptr, 1, 0, 1) == 0);
  for (const char* call : {"cuLaunchKernel", "cuMemcpyAsync"}) {
    test::running() = std::string("a refused ") + call;
    Blocks refused(kPinned, 0, 1500, 16 * kKiB, 16, &dice, true);
    CHECK(simcuda_fail(call, 3, CUDA_ERROR_UNKNOWN, 1) == 0);
    CHECK_TEXT(test::text_in(refused.copy(), "state") == "done", "refused");
    refused.check(false);
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  }
}

// Batches, and single copies where the driver has no batches either, give the same bytes.
TEST(drivers_without) {
  for (const char* lacks : {"cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"}) {
    test::running() = std::string("a driver without ") + lacks;
    Node node("dgx_a100", {{"memory", "256MiB"}});
    test::Dice dice(9);
    CHECK(simcuda_fail(lacks, 1, CUDA_ERROR_NOT_SUPPORTED, -1) == 0);
    for (const bool batches : {true, false}) {
      if (!batches) CHECK(simcuda_fail("cuMemcpyBatchAsync", 1, CUDA_ERROR_NOT_SUPPORTED, -1) == 0);
      Blocks blocks(0, kPinned, 300, 8 * kKiB, 16, &dice);
      CHECK(test::text_in(blocks.copy(), "state") == "done");
      blocks.check();
    }
    CHECK(launches() == 0);
    const bool loads = std::string(lacks) != "cuLaunchKernel";
    CHECK(loads == (test::text_in(test::transfer_stats(), "without_kernels") != ""));
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  }
}

// A graph gets the driver's own copies, and no kernel, because the kernel's table would have to
// live as long as the graph.
TEST(captures) {
  test::running() = "a capture";
  Node node("dgx_a100", {{"memory", "256MiB"}});
  test::Dice dice(11);
  Blocks blocks(0, kPinned, 300, 8 * kKiB, 16, &dice);
  test::CurrentContext context(0);
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  const uint64_t id = Call(blocks.parts, 0, GLAKE_HOST).on(stream, 0).start();
  CHECK_TEXT(id != 0, test::last_error());
  CUgraph graph;
  CU(cuStreamEndCapture(stream, &graph));
  CHECK(launches() == 0);
  CU(cuGraphDestroy(graph));
  // Outside of a capture the stream waits for the kernels as for any copy.
  CHECK(simcuda_watch_landings(blocks.dst.at(), blocks.dst.bytes()) == 0);
  const uint64_t ordered = Call(blocks.parts, 0, GLAKE_HOST).on(stream, 0).start();
  CHECK_TEXT(ordered != 0, test::last_error());
  CU(cuStreamSynchronize(stream));
  blocks.check();
  CHECK(launches() > 0);
  OK(glake_copy_wait(ordered, test::kForever));
  OK(glake_copy_release(ordered));
  test::end_stream(stream);
}

// One pageable block among many pinned ones is found. A kernel's access to it would end a context.
TEST(a_pageable_block) {
  test::running() = "a pageable block";
  Node node("dgx_a100", {{"memory", "256MiB"}});
  test::Dice dice(13);
  Blocks blocks(0, kPinned, 600, 16 * kKiB, 16, &dice);
  Buffer stray(kPageable, 16 * kKiB);
  stray.fill(3);
  glake_copy_part& part = blocks.parts[300];
  const size_t to = part.dst - blocks.dst.at();
  part.src = stray.at();
  CHECK(test::text_in(blocks.copy(), "state") == "done");
  CHECK(blocks.dst.holds(3, to, 16 * kKiB, 0));
  CHECK(test::violations() == "[]");
  CHECK(simcuda_watch_landings(0, 0) == 0);
}

TEST(estimates) {
  test::running() = "estimates";
  using namespace glake::transfer;
  const BlockCosts costs;
  auto best = [&](size_t count, size_t bytes, Rate rate, bool batch = true, bool kernel = true) {
    BlockLoad load;
    for (size_t i = 0; i < count; ++i) load.add(bytes, costs);
    return best_way(load, rate, costs, batch, kernel);
  };
  CHECK(best(512, 16 * kKiB, 25) == BlockWay::kKernel);
  CHECK(best(512, 16 * kKiB, 25, true, false) == BlockWay::kBatch);
  CHECK(best(512, 16 * kKiB, 25, false, false) == BlockWay::kSingly);
  CHECK(best(16, 512 * kKiB, 25) == BlockWay::kBatch);
  CHECK(best(1, 512 * kKiB, 25, false) == BlockWay::kSingly);
  CHECK(best(128, 64 * kKiB, 450) == BlockWay::kKernel);
  CHECK(better_staged(8 * kMiB, 25, costs) && !better_staged(kMiB, 400, costs));
}

TEST(overlaps) {
  test::running() = "overlaps";
  using glake::transfer::Access;
  using glake::transfer::find_overlap;
  test::Dice dice(17);
  for (int round = 0; round < 2000; ++round) {
    std::vector<Access> accesses;
    const size_t count = dice(1, 12), room = dice(0, 1) == 0 ? 200 : uint64_t{1} << dice(8, 47);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t begin = 1 + dice(0, room);
      accesses.push_back({begin, begin + dice(1, 40), dice(0, 1) == 0});
    }
    bool any = false;
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < i; ++j) {
        any = any || ((accesses[i].written || accesses[j].written) &&
                      accesses[i].begin < accesses[j].end && accesses[j].begin < accesses[i].end);
      }
    }
    CHECK((find_overlap(accesses).at != 0) == any);
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
