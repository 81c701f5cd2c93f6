// Random programs over regions and streams: blocks at home and through views, freed and allocated,
// paused and resumed at random. The contents of every block are known.
#include <memory>

#include "harness.h"

namespace {

using test::kKiB;
using test::kMiB;

class Program {
 public:
  explicit Program(uint64_t seed) : dice_(seed) {
    test::running() = "random regions, seed " + std::to_string(seed);
    test::fresh_simulator({{"memory", "64MiB"}, {"devices", "1"}, {"seed", std::to_string(seed)}});
    test::configure({{"driver", "sim"},
                     {"policy", dice_.chance(50) ? "compact" : "balanced"},
                     {"limit", "40MiB"}});
    context_ = std::make_unique<test::CurrentContext>();
    for (CUstream& s : streams_) CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(glake_region_pool("a", &pools_[1]));
    OK(glake_region_pool("b", &pools_[2]));
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      const int what = static_cast<int>(dice_(0, 99));
      if (what < 48) {
        allocate(dice_(0, 2));
      } else if (what < 82) {
        if (!blocks_.empty()) end(dice_(0, blocks_.size() - 1));
      } else if (what < 88) {
        pause(dice_(1, 2));
      } else if (what < 96) {
        resume(dice_(1, 2));
      } else if (what < 98) {
        OK(glake_empty_cache(0));
      } else {
        OK(glake_region_budget(pools_[1], dice_.chance(50) ? 0 : dice_(2, 30) * kMiB));
      }
      if (i % 8 == 7) OK(glake_check(0));
    }
    // Frees about half of the blocks in paused regions, so that some have no block left.
    for (size_t i = 0; i < blocks_.size();) {
      if (!paused_[blocks_[i].pool] || dice_.chance(50)) {
        end(i);
      } else {
        ++i;
      }
    }
    for (size_t pool : {1U, 2U}) resume(pool);
    while (!blocks_.empty()) end(blocks_.size() - 1);
    OK(glake_region_budget(pools_[1], 0));
    OK(glake_check(0));
    OK(glake_shutdown());
    for (CUstream& s : streams_) test::end_stream(s);
    context_.reset();
    test::check_nothing_left();
  }
  int64_t refused = 0, resumed = 0, too_little = 0, verified = 0, stitched = 0;

 private:
  struct Block {
    void* ptr;
    size_t bytes;
    uint32_t word;
    size_t stream, pool;
  };

  void allocate(size_t pool) {
    const size_t bytes = dice_.chance(40) ? dice_(1, 200 * kKiB) * 4 : dice_(1, 9 * kMiB / 4) * 4;
    const size_t on = dice_(0, 2);
    void* ptr = glake_pool_malloc(bytes, 0, streams_[on], pools_[pool]);
    if (ptr == nullptr) {
      const int code = glake_last_error(nullptr, 0);
      CHECK(code == GLAKE_OUT_OF_MEMORY || (paused_[pool] && code == GLAKE_REGION_PAUSED));
      if (code == GLAKE_OUT_OF_MEMORY) paused_[pool] = false;
      ++refused;
      return;
    }
    paused_[pool] = false;  // a request ends the pause of a region without blocks
    blocks_.push_back({ptr, bytes, ++word_, on, pool});
    CU(cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(ptr), word_, bytes / 4, streams_[on]));
  }

  void end(size_t i) {
    const Block block = blocks_[i];
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
    const auto at = reinterpret_cast<CUdeviceptr>(block.ptr);
    CUstream stream = streams_[block.stream];
    if (!paused_[block.pool] && dice_.chance(50)) {
      std::vector<uint32_t> words(block.bytes / 4);
      CU(cuMemcpyDtoHAsync(words.data(), at, block.bytes, stream));
      CU(cuStreamSynchronize(stream));
      for (uint32_t word : words) CHECK_TEXT(word == block.word, "foreign bytes in a block");
      ++verified;
    } else if (!paused_[block.pool]) {
      const size_t on = dice_(0, 2);
      CU(cuMemsetD32Async(at, 0, block.bytes / 4, stream));
      if (on != block.stream) OK(glake_record_stream(block.ptr, streams_[on]));
    }
    OK(glake_free(block.ptr));
  }

  void pause(size_t pool) {
    const bool disk = dice_.chance(30);
    const int code = glake_region_pause(
        0, pools_[pool], disk ? GLAKE_REGION_DISK : GLAKE_REGION_HOST, disk ? "/tmp" : nullptr);
    if (paused_[pool]) {
      // All of it may have been freed meanwhile.
      CHECK(code == GLAKE_REGION_REFUSED || code == GLAKE_OK || code == GLAKE_INVALID_ARGUMENT);
    } else {
      CHECK(code == GLAKE_OK || code == GLAKE_INVALID_ARGUMENT);  // it has never had memory
    }
    if (code == GLAKE_OK) paused_[pool] = true;
    if (code == GLAKE_INVALID_ARGUMENT) paused_[pool] = false;
  }

  void resume(size_t pool) {
    stitched = std::max(stitched, test::stat("glake.stitches"));
    const int code = glake_region_resume(0, pools_[pool], dice_.chance(50) ? 1 : 0);
    if (code == GLAKE_OK) {
      CHECK(paused_[pool]);
      paused_[pool] = false;
      ++resumed;
      return;
    }
    if (code == GLAKE_OUT_OF_MEMORY) {
      CHECK(paused_[pool]);
      ++too_little;
      return;
    }
    CHECK(code == GLAKE_REGION_REFUSED || code == GLAKE_INVALID_ARGUMENT);
    paused_[pool] = false;
  }

  test::Dice dice_;
  std::unique_ptr<test::CurrentContext> context_;
  CUstream streams_[3] = {};
  glake_pool pools_[3] = {};
  bool paused_[3] = {};
  std::vector<Block> blocks_;
  uint32_t word_ = 0;
};

TEST(random_programs) {
  int64_t refused = 0, resumed = 0, too_little = 0, verified = 0, stitched = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Program program(seed);
    program.run(500);
    refused += program.refused;
    resumed += program.resumed;
    too_little += program.too_little;
    verified += program.verified;
    stitched += program.stitched;
  }
  std::printf(
      "%lld resumes, %lld for which there was no memory, %lld blocks verified, %lld "
      "stitched, %lld requests refused\n",
      static_cast<long long>(resumed), static_cast<long long>(too_little),
      static_cast<long long>(verified), static_cast<long long>(stitched),
      static_cast<long long>(refused));
  CHECK(resumed > 20 && too_little > 0 && verified > 100 && stitched > 0);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
