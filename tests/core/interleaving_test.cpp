// Two threads run while the allocator has released its lock around a driver call. Slow calls
// (call_delay_us) make that time long. The tests check statistics and addresses, not contents.
#include <thread>

#include "harness.h"

namespace {

constexpr size_t kBlock = 2 * test::kGranule;

void check_apart(const std::vector<test::Held>& held) {
  for (const auto& a : held) {
    for (const auto& b : held) {
      auto x = reinterpret_cast<uintptr_t>(a.ptr), y = reinterpret_cast<uintptr_t>(b.ptr);
      CHECK(x == y || x >= y + b.bytes || y >= x + a.bytes);
    }
  }
}

struct Blocks {
  explicit Blocks(const char* limit) {
    test::fresh_simulator({{"phantom", "1"}, {"memory", "1GiB"}});
    test::configure({{"driver", "sim"}, {"limit", limit}});
  }
  ~Blocks() {
    check_apart(held);
    test::check_books(held);
    OK(glake_check(0));
    for (const auto& h : held) OK(glake_free(h.ptr));
    OK(glake_shutdown());
    test::check_nothing_left();
  }
  void* add(size_t bytes) {
    void* ptr = glake_malloc(bytes, 0, nullptr);
    CHECK(ptr != nullptr);
    held.push_back({ptr, bytes, 0});
    return ptr;
  }
  void drop(void* ptr) {
    for (size_t i = 0; i < held.size(); ++i) {
      if (held[i].ptr != ptr) continue;
      OK(glake_free(ptr));
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    CHECK(!"held");
  }
  std::vector<test::Held> held;
};

// A stitch that grows in several holes. Granules in the first hole must not go to another thread
// while the second hole is being filled.
TEST(growth_in_holes_beside_a_hit) {
  test::running() = "growth in holes";
  Blocks blocks("18MiB");
  void* parts[6];  // 4, 2, 4, 2, 4, 2 MiB
  for (int i = 0; i < 6; ++i) parts[i] = blocks.add(i % 2 == 0 ? kBlock : test::kGranule);
  blocks.drop(parts[0]);
  blocks.drop(parts[2]);
  OK(glake_empty_cache(0));
  blocks.drop(parts[4]);
  // There are two holes of 4 MiB, 4 MiB free between live blocks, and room to grow by 8 MiB. A
  // request of 12 MiB takes all three stretches.
  const int64_t creates = simcuda_calls("cuMemCreate");
  CHECK(simcuda_configure("call_delay_us", "cuMemCreate=20000") == 0);
  void* stolen = nullptr;
  std::thread other([&] {
    while (simcuda_calls("cuMemCreate") < creates + 3) std::this_thread::yield();
    stolen = glake_malloc(kBlock, 0, nullptr);
  });
  void* ptr = glake_malloc(12 * test::kMiB, 0, nullptr);
  other.join();
  CHECK(simcuda_configure("call_delay_us", "cuMemCreate=0") == 0);
  if (ptr != nullptr) blocks.held.push_back({ptr, 12 * test::kMiB, 0});
  if (stolen != nullptr) blocks.held.push_back({stolen, kBlock, 0});
  CHECK((ptr != nullptr) != (stolen != nullptr));
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }
