// Calls torch's allocator from C++, without Python between. worker.py compiles this against the
// installed torch, with g++ alone. (It is no .cpp, as CMake builds those, without torch.)
#include <c10/core/Allocator.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#define LOOP_API extern "C" __attribute__((visibility("default")))

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kLeast = 512;

c10::Allocator* allocator_of(int cuda) {
  return c10::GetAllocator(cuda != 0 ? c10::DeviceType::CUDA : c10::DeviceType::CPU);
}

// Replaces random ones of `live` blocks, log-uniform from 512 bytes to `most`, until told to stop.
// Returns the number of pairs, or -1 if the allocator threw.
int64_t replace_blocks(c10::Allocator& allocator, size_t most, int live, unsigned seed,
                       const std::atomic<bool>& stop) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<double> exponent(std::log2(kLeast),
                                                  std::log2(static_cast<double>(most)));
  std::vector<void*> held(static_cast<size_t>(live), nullptr);
  int64_t pairs = 0;
  try {
    for (; !stop.load(std::memory_order_relaxed); ++pairs) {
      void*& block = held[random() % held.size()];
      if (block != nullptr) allocator.raw_deallocate(block);
      block = nullptr;
      block = allocator.raw_allocate(static_cast<size_t>(std::exp2(exponent(random))));
    }
  } catch (...) {
    pairs = -1;
  }
  for (void* block : held) {
    if (block != nullptr) allocator.raw_deallocate(block);
  }
  return pairs;
}

}  // namespace

// Nanoseconds of one allocation of `bytes` and its free, over `times` pairs, while `live` other
// blocks are held. Negative if the device has no allocator.
LOOP_API double pair_ns(int cuda, size_t bytes, int live, int times) {
  try {
    c10::Allocator* allocator = allocator_of(cuda);
    if (allocator == nullptr) return -1;
    std::vector<void*> held(static_cast<size_t>(live) + 1);
    for (void*& block : held) block = allocator->raw_allocate(bytes);
    const auto start = Clock::now();
    uint32_t random = 1;
    for (int i = 0; i < times; ++i) {
      random = random * 1664525u + 1013904223u;
      void*& block = held[(random >> 8) % held.size()];
      allocator->raw_deallocate(block);
      block = allocator->raw_allocate(bytes);
    }
    const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
    for (void* block : held) allocator->raw_deallocate(block);
    return taken.count() / times;
  } catch (...) {
    return -2;
  }
}

// Pairs of allocation and free per second. Each of `threads` threads replaces `live` blocks of
// mixed sizes up to `most` bytes. Negative if the device has no allocator or memory ran out.
LOOP_API double mixed_per_s(int cuda, size_t most, int live, int threads, double seconds) {
  c10::Allocator* allocator = allocator_of(cuda);
  if (allocator == nullptr) return -1;
  std::atomic<bool> stop{false};
  std::vector<int64_t> pairs(static_cast<size_t>(threads), 0);
  std::vector<std::thread> pool;
  const auto start = Clock::now();
  for (int i = 0; i < threads; ++i) {
    pool.emplace_back([&, i] {
      pairs[static_cast<size_t>(i)] =
          replace_blocks(*allocator, most, live, static_cast<unsigned>(i + 1), stop);
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& each : pool) each.join();
  const std::chrono::duration<double> taken = Clock::now() - start;
  int64_t all = 0;
  for (const int64_t each : pairs) {
    if (each < 0) return -2;
    all += each;
  }
  return static_cast<double>(all) / taken.count();
}
