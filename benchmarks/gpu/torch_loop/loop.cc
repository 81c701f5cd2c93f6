// torch's allocator called from C++, no Python between: compiled by worker.py against the installed
// torch, with g++ alone. (Not .cpp: CMake builds those, without torch.)
#include <c10/core/Allocator.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

// Nanoseconds of one allocation and its free, `bytes` each, over `times` of them with `live` others
// held; negative if the device has no allocator.
extern "C" __attribute__((visibility("default"))) double pair_ns(int cuda, size_t bytes, int live,
                                                                 int times) {
  try {
    c10::Allocator* allocator =
        c10::GetAllocator(cuda != 0 ? c10::DeviceType::CUDA : c10::DeviceType::CPU);
    if (allocator == nullptr) return -1;
    std::vector<void*> held(static_cast<size_t>(live) + 1);
    for (void*& block : held) block = allocator->raw_allocate(bytes);
    const auto start = std::chrono::steady_clock::now();
    uint32_t random = 1;
    for (int i = 0; i < times; ++i) {
      random = random * 1664525u + 1013904223u;
      void*& block = held[(random >> 8) % held.size()];
      allocator->raw_deallocate(block);
      block = allocator->raw_allocate(bytes);
    }
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
    for (void* block : held) allocator->raw_deallocate(block);
    return taken.count() / times;
  } catch (...) {
    return -2;
  }
}
