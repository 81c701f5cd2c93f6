// Private pools: their memory stays theirs, one limit for all, users and life, flags; and a random
// program over pools and streams whose contents are known.
#include <memory>
#include <thread>

#include "harness.h"

namespace {

using test::kGranule;
using test::kKiB;
using test::kMiB;

constexpr glake_pool kPool{3, 0}, kOther{0, 7};

void start(const char* limit = "64MiB") {
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", limit}});
}

void finish() {
  OK(glake_check(0));
  OK(glake_shutdown());
  test::check_nothing_left();
}

void* get(size_t bytes, glake_pool pool, void* stream = nullptr) {
  void* ptr = glake_pool_malloc(bytes, 0, stream, pool);
  CHECK(ptr != nullptr && reinterpret_cast<uintptr_t>(ptr) % 512 == 0);
  return ptr;
}

int64_t reserved(const char* pool) {
  return test::stat(std::string("glake.pool.") + pool + ".reserved_bytes");
}
bool known(const char* pool) {
  return test::stats().find(std::string("glake.pool.") + pool + ".") != std::string::npos;
}

void memory_stays_with_its_pool() {
  test::running() = "memory stays with its pool";
  start();
  OK(glake_pool_retain(0, kPool));
  void* a = get(5 * kMiB, kPool);
  void* small = get(1000, kPool);
  size_t bytes = 0;
  int device = -1;
  OK(glake_block_info(a, &bytes, &device, nullptr));
  CHECK(bytes == 5 * kMiB && device == 0);
  CHECK(reserved("3.0") == static_cast<int64_t>(4 * kGranule));
  CHECK(test::stat("reserved_bytes.all.current") == static_cast<int64_t>(4 * kGranule));
  test::check_books({{a, 5 * kMiB, 0}, {small, 1000, 0}});
  OK(glake_free(a));
  OK(glake_free(small));
  GIVES(GLAKE_INVALID_POINTER, glake_free(a));
  // Free memory of the pool serves neither the device's own requests nor another pool's.
  void* own = glake_malloc(5 * kMiB, 0, nullptr);
  void* other = get(5 * kMiB, kOther);
  CHECK(own != a && other != a);
  CHECK(get(5 * kMiB, kPool) == a && get(1000, kPool) == small);
  CHECK(reserved("3.0") == static_cast<int64_t>(4 * kGranule));
  CHECK(reserved("0.7") == static_cast<int64_t>(3 * kGranule));
  for (void* ptr : {a, small, own, other}) OK(glake_free(ptr));
  OK(glake_pool_release(0, kPool));
  finish();
}

void users_and_life() {
  test::running() = "users and life";
  start();
  CHECK(glake_pool_uses(0, kPool) == 0);
  OK(glake_pool_retain(0, kPool));
  OK(glake_pool_retain(0, kPool));
  CHECK(glake_pool_uses(0, kPool) == 2);
  void* a = get(6 * kMiB, kPool);
  void* b = get(6 * kMiB, kPool);
  OK(glake_pool_release(0, kPool));
  OK(glake_free(a));
  OK(glake_empty_cache(0));  // in use: keeps its memory
  CHECK(reserved("3.0") == static_cast<int64_t>(12 * kMiB));
  OK(glake_pool_empty_cache(0, kPool));  // asked for by name, and no graph has captured it
  CHECK(reserved("3.0") == static_cast<int64_t>(6 * kMiB));
  OK(glake_pool_release(0, kPool));
  CHECK(glake_pool_uses(0, kPool) == 0);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_release(0, kPool));
  OK(glake_check(0));
  OK(glake_free(b));  // it outlived the pool's users
  CHECK(known("3.0"));
  OK(glake_empty_cache(0));
  CHECK(!known("3.0") && test::stat("glake.physical_bytes") == 0);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_release(0, kPool));
  OK(glake_pool_empty_cache(0, kPool));
  // The next pool has the ended one's addresses: no reservation is made for it.
  int64_t reservations = simcuda_calls("cuMemAddressReserve");
  CHECK(get(6 * kMiB, kOther) != nullptr);  // made with no user
  CHECK(simcuda_calls("cuMemAddressReserve") == reservations);
  CHECK(glake_pool_uses(0, kOther) == 0);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
  OK(glake_free(a));
  finish();
}

void bad_input() {
  test::running() = "bad input";
  start();
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_retain(0, {0, 0}));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_release(0, kPool));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_set_flags(0, kPool, GLAKE_POOL_NO_SPLIT));
  OK(glake_pool_set_flags(0, kPool, 0));
  OK(glake_pool_retain(0, kPool));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_pool_set_flags(0, kPool, 8));
  GIVES(GLAKE_INVALID_DEVICE, glake_pool_retain(9, kPool));
  CHECK(glake_pool_uses(9, kPool) == -GLAKE_INVALID_DEVICE);
  CHECK(glake_pool_malloc(0, 0, nullptr, kPool) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  CHECK(glake_pool_malloc(1, 9, nullptr, kPool) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_DEVICE);
  void* own = glake_pool_malloc(3 * kMiB, 0, nullptr, {0, 0});  // the device's own memory
  CHECK(own != nullptr && reserved("3.0") == 0);
  OK(glake_free(own));
  OK(glake_pool_empty_cache(0, {0, 0}));
  CHECK(test::stat("glake.physical_bytes") == 0);
  finish();  // a pool's users do not keep the device from being given up
}

void one_limit_for_all() {
  test::running() = "one limit for all";
  start("32MiB");
  OK(glake_pool_retain(0, kPool));
  OK(glake_pool_retain(0, kOther));
  void* a = get(16 * kMiB, kPool);
  OK(glake_free(a));
  // In use: its memory stays, and the text says who has it.
  CHECK(glake_malloc(20 * kMiB, 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
  CHECK_TEXT(test::last_error().find("private pool {3, 0} holds 16.00 MiB (16.00 MiB idle, users") !=
                 std::string::npos,
             test::last_error());
  CHECK(glake_pool_malloc(20 * kMiB, 0, nullptr, kOther) == nullptr);
  CHECK(reserved("3.0") == static_cast<int64_t>(16 * kMiB));
  // Nobody's: it goes back, and the request is served, by the device's heap or another pool's.
  OK(glake_pool_release(0, kPool));
  void* own = glake_malloc(20 * kMiB, 0, nullptr);
  CHECK(own != nullptr);
  OK(glake_free(own));
  void* other = get(28 * kMiB, kOther);  // the device's own free memory goes back for a pool
  CHECK(test::stat("glake.physical_bytes") <= static_cast<int64_t>(32 * kMiB));
  OK(glake_free(other));
  OK(glake_pool_release(0, kOther));
  finish();
}

void use_on_oom() {
  test::running() = "use on oom";
  start("32MiB");
  OK(glake_pool_retain(0, kPool));
  OK(glake_pool_set_flags(0, kPool, GLAKE_POOL_USE_ON_OOM));
  void* held = get(4 * kMiB, kPool);
  void* a = get(20 * kMiB, kPool);
  OK(glake_free(a));
  void* own = glake_malloc(8 * kMiB, 0, nullptr);
  void* borrowed = glake_malloc(16 * kMiB, 0, nullptr);
  CHECK(borrowed == a && reserved("3.0") == static_cast<int64_t>(24 * kMiB));
  OK(glake_check(0));
  CHECK(glake_malloc(16 * kMiB, 0, nullptr) == nullptr);
  OK(glake_free(borrowed));
  CHECK(get(20 * kMiB, kPool) == a);  // it came back to the pool
  OK(glake_free(a));
  OK(glake_pool_set_flags(0, kPool, 0));
  CHECK(glake_malloc(16 * kMiB, 0, nullptr) == nullptr);
  for (void* ptr : {held, own}) OK(glake_free(ptr));
  finish();
}

void no_split() {
  test::running() = "no split";
  start();
  OK(glake_pool_retain(0, kPool));
  OK(glake_pool_set_flags(0, kPool, GLAKE_POOL_NO_SPLIT));
  void* big = get(9 * kMiB, kPool);
  void* small = get(1000, kPool);
  CHECK(test::stat("allocated_bytes.all.current") == static_cast<int64_t>(6 * kGranule));
  OK(glake_free(big));
  OK(glake_check(0));
  GIVES(GLAKE_INVALID_POINTER, glake_free(big));
  void* part = get(3 * kMiB, kPool);  // whole: all of the 10 MiB
  CHECK(part == big && reserved("3.0") == static_cast<int64_t>(6 * kGranule));
  void* next = get(3 * kMiB, kPool);
  CHECK(next != big && reserved("3.0") == static_cast<int64_t>(8 * kGranule));
  OK(glake_free(part));
  OK(glake_free(next));
  CHECK(get(3 * kMiB, kPool) == next);  // the smallest that does
  CHECK(test::stat("requested_bytes.all.current") == static_cast<int64_t>(3 * kMiB + 1000));
  OK(glake_free(next));
  OK(glake_free(small));
  OK(glake_check(0));
  OK(glake_pool_empty_cache(0, kPool));
  CHECK(reserved("3.0") == 0);
  OK(glake_pool_release(0, kPool));
  finish();
}

// Memory of a pool no graph has captured moves between streams as the device's own does.
void streams_share_an_eager_pool() {
  test::running() = "streams share an eager pool";
  test::fresh_simulator({{"phantom", "1"}, {"complete_after", "-1"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", "8MiB"}});
  auto context = std::make_unique<test::CurrentContext>();
  CUstream s = nullptr;
  CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  void* a = get(8 * kMiB, kPool);
  CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(a), 1, 8 * kMiB, nullptr));
  OK(glake_free(a));
  int64_t waits = simcuda_calls("cuStreamWaitEvent");
  CHECK(get(8 * kMiB, kPool, s) == a);
  CHECK(simcuda_calls("cuStreamWaitEvent") == waits + 1);
  OK(glake_free(a));
  OK(glake_shutdown());
  CU(cuStreamDestroy(s));
  context.reset();
  test::check_nothing_left();
}

void peers_reach_pools() {
  test::running() = "peers reach pools";
  test::fresh_simulator({{"memory", "64MiB"}, {"devices", "2"}});
  test::configure({{"driver", "sim"}});
  void* before = get(3 * kMiB, kPool);
  OK(glake_enable_peer_access(0, 1));
  void* after = get(9 * kMiB, kPool);
  {
    test::CurrentContext context(1);
    for (void* ptr : {before, after}) {
      CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(ptr), 5, 3 * kMiB, nullptr));
    }
    CU(cuCtxSynchronize());
  }
  CHECK_TEXT(test::violations() == "[]", test::violations());
  OK(glake_free(before));
  OK(glake_free(after));
  finish();
}

void dozens() {
  test::running() = "dozens of pools";
  start("256MiB");
  std::vector<void*> blocks;
  for (uint64_t i = 1; i <= 48; ++i) {
    OK(glake_pool_retain(0, {i, 1}));
    blocks.push_back(get(1000, {i, 1}));
    blocks.push_back(get(2 * kMiB, {i, 1}));
  }
  OK(glake_check(0));
  for (void* ptr : blocks) OK(glake_free(ptr));
  for (uint64_t i = 1; i <= 48; ++i) OK(glake_pool_release(0, {i, 1}));
  OK(glake_empty_cache(0));
  CHECK(test::stat("glake.physical_bytes") == 0);
  finish();
}

void threads() {
  test::running() = "threads on pools";
  start("256MiB");
  std::vector<std::thread> workers;
  for (uint64_t t = 0; t < 4; ++t) {
    workers.emplace_back([t] {
      test::Dice dice(t);
      const glake_pool mine{t % 3, 5};
      std::vector<void*> held;
      OK(glake_pool_retain(0, mine));
      for (int i = 0; i < 2000 / test::kSlowdown; ++i) {
        if (held.size() < 6 && dice.chance(60)) {
          held.push_back(get(dice(1, dice.chance(50) ? kMiB : 5 * kMiB), mine));
        } else if (!held.empty()) {
          OK(glake_free(held.back()));
          held.pop_back();
        }
        if (i % 256 == 255) OK(glake_pool_empty_cache(0, mine));
        if (i % 512 == 100) OK(glake_empty_cache(0));
      }
      for (void* ptr : held) OK(glake_free(ptr));
      OK(glake_pool_release(0, mine));
    });
  }
  for (std::thread& worker : workers) worker.join();
  finish();
}

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
    for (CUstream& s : streams_) CU(cuStreamDestroy(s));
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

  // Half of the blocks are only freed, with work on them pending.
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

  // A checkpoint, some operations on the pool, and back.
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
      return;  // and nothing has changed
    }
    ++restored;
    for (void* ptr : seen.freed) take(&blocks_, ptr, at);
    for (auto [ptr, bytes] : seen.back) {
      blocks_.push_back(take(&before, ptr, at));
      CHECK(blocks_.back().bytes == bytes);
      stamp(blocks_.back());
    }
    // What is left of the pool's was lent by another.
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

void random_programs() {
  int64_t refused = 0, restored = 0, ended = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    if (seed > 1 && test::kSlowdown > 1 && seed % 3 != 0) continue;
    Program program(seed);
    program.run(1500 / (test::kSlowdown > 1 ? 4 : 1));
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

int main() {
  memory_stays_with_its_pool();
  users_and_life();
  bad_input();
  one_limit_for_all();
  use_on_oom();
  no_split();
  streams_share_an_eager_pool();
  peers_reach_pools();
  dozens();
  threads();
  random_programs();
  return 0;
}
