// Random programs over private pools and streams, with checkpoints: the contents of every block are
// known, and the books are checked as they go.
#include <memory>

#include "harness.h"

namespace {

using test::kKiB;
using test::kMiB;

constexpr glake_pool kPool{3, 0}, kOther{0, 7};

// Random operations; every block holds one word, which is read back when it ends.
class Program {
 public:
  explicit Program(uint64_t seed) : dice_(seed) {
    test::running() = "random pools, seed " + std::to_string(seed);
    test::fresh_simulator({{"memory", "64MiB"}, {"devices", "1"}, {"seed", std::to_string(seed)}});
    test::configure({{"driver", "sim"},
                     {"policy", dice_.chance(50) ? "compact" : "balanced"},
                     {"limit", "40MiB"}});
    context_ = std::make_unique<test::CurrentContext>();
    for (CUstream& s : streams_) CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      const int what = static_cast<int>(dice_(0, 99));
      const glake_pool pool = pools_[dice_(0, 3)];
      if (what < 50) {
        allocate(pool);
      } else if (what < 86) {
        if (!blocks_.empty()) end(dice_(0, blocks_.size() - 1));
      } else if (pool.first == 0 && pool.second == 0) {
        OK(glake_empty_cache(0));
      } else if (what < 89) {
        OK(glake_pool_retain(0, pool));
      } else if (what < 92) {
        if (glake_pool_uses(0, pool) > 0) OK(glake_pool_release(0, pool));
      } else if (what < 94) {
        if (glake_pool_uses(0, pool) > 0) {
          OK(glake_pool_set_flags(0, pool, static_cast<unsigned>(dice_(0, 3))));
        }
      } else if (what < 97) {
        OK(glake_pool_empty_cache(0, pool));
      } else {
        restore(pool);
      }
      if (i % 32 == 31) OK(glake_check(0));
    }
    while (!blocks_.empty()) end(blocks_.size() - 1);
    OK(glake_check(0));
    OK(glake_shutdown());
    for (CUstream& s : streams_) test::end_stream(s);
    context_.reset();
    test::check_nothing_left();
  }
  int64_t refused = 0, restored = 0, ended = 0, lent = 0;

 private:
  struct Block {
    void* ptr;
    size_t bytes;
    uint32_t word;
    int stream;
    int pool;
  };

  void stamp(Block& block) {
    block.word = ++word_;
    CU(cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(block.ptr), block.word, block.bytes / 4,
                        streams_[block.stream]));
  }

  void allocate(glake_pool pool) {
    int at = 0;
    while (pools_[at].first != pool.first || pools_[at].second != pool.second) ++at;
    size_t bytes = dice_.chance(40) ? dice_(1, 200 * kKiB) * 4 : dice_(1, 9 * kMiB / 4) * 4;
    const int on = static_cast<int>(dice_(0, 2));
    void* ptr = glake_pool_malloc(bytes, 0, streams_[on], pool);
    if (ptr == nullptr) {
      CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
      ++refused;
      return;
    }
    blocks_.push_back({ptr, bytes, 0, on, at});
    stamp(blocks_.back());
  }

  void verify(const Block& block) {
    std::vector<uint32_t> words(block.bytes / 4);
    CU(cuMemcpyDtoHAsync(words.data(), reinterpret_cast<CUdeviceptr>(block.ptr), block.bytes,
                         streams_[block.stream]));
    CU(cuStreamSynchronize(streams_[block.stream]));
    for (uint32_t word : words) CHECK_TEXT(word == block.word, "foreign bytes in a block");
  }

  // Half of the blocks are not read back but freed with work on them pending.
  void end(size_t i) {
    const Block block = blocks_[i];
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
    if (dice_.chance(50)) {
      verify(block);
      ++ended;
    } else {
      CU(cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(block.ptr), 0, block.bytes / 4,
                          streams_[block.stream]));
    }
    OK(glake_free(block.ptr));
  }

  // Makes a checkpoint, does some operations on the pool, and restores it.
  void restore(glake_pool pool) {
    glake_checkpoint* then = glake_pool_checkpoint(0, pool);
    if (then == nullptr) return;  // no such pool
    std::vector<Block> before = blocks_;
    for (int i = 0; i < 6; ++i) {
      allocate(pool);
      if (dice_.chance(50) && !blocks_.empty()) end(dice_(0, blocks_.size() - 1));
    }
    int at = 0;
    while (pools_[at].first != pool.first || pools_[at].second != pool.second) ++at;
    Seen seen;
    int code = glake_pool_restore(
        then, &seen, [](void* self, void* ptr) { static_cast<Seen*>(self)->freed.push_back(ptr); },
        [](void* self, void* ptr, size_t bytes, void*) {
          static_cast<Seen*>(self)->back.emplace_back(ptr, bytes);
        });
    glake_checkpoint_free(then);
    OK(glake_check(0));
    if (code != GLAKE_OK) {
      CHECK(seen.freed.empty() && seen.back.empty());
      return;  // nothing has changed
    }
    ++restored;
    for (void* ptr : seen.freed) take(&blocks_, ptr, at);
    for (auto [ptr, bytes] : seen.back) {
      blocks_.push_back(take(&before, ptr, at));
      CHECK(blocks_.back().bytes == bytes);
      stamp(blocks_.back());
    }
    // The pool's other blocks lie in memory that another pool lent.
    for (const Block& b : blocks_) {
      if (b.pool == at && b.word <= word_ - seen.back.size()) ++lent;
    }
  }

  struct Seen {
    std::vector<void*> freed;
    std::vector<std::pair<void*, size_t>> back;
  };
  static Block take(std::vector<Block>* from, void* ptr, int pool) {
    size_t i = 0;
    while (i < from->size() && (*from)[i].ptr != ptr) ++i;
    CHECK(i < from->size() && (*from)[i].pool == pool);
    const Block block = (*from)[i];
    from->erase(from->begin() + static_cast<std::ptrdiff_t>(i));
    return block;
  }

  test::Dice dice_;
  std::unique_ptr<test::CurrentContext> context_;
  CUstream streams_[3] = {};
  const glake_pool pools_[4] = {{0, 0}, kPool, kOther, {5, 5}};
  std::vector<Block> blocks_;
  uint32_t word_ = 0;
};

TEST(random_programs) {
  int64_t refused = 0, restored = 0, ended = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Program program(seed);
    program.run(600);
    refused += program.refused;
    restored += program.restored;
    ended += program.ended;
  }
  std::printf("%lld blocks verified, %lld requests refused, %lld restores\n",
              static_cast<long long>(ended), static_cast<long long>(refused),
              static_cast<long long>(restored));
  CHECK(ended > 100 && restored > 0);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
