// What every part of simcuda shares: the driver's own types, the granule, slot tables that turn
// objects into handles which stay safe to look up after they are destroyed, and error texts.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

// Base names whose signature changed between toolkits: simcuda defines each version by hand.
#undef cuCtxCreate
#undef cuDeviceGetUuid
#undef cuEventElapsedTime
#undef cuGetProcAddress
#undef cuStreamGetCaptureInfo
#undef cuMemcpyBatchAsync

#define SIMCUDA_EXPORT extern "C" __attribute__((visibility("default")))

namespace simcuda {

constexpr size_t kGranule = size_t{2} << 20;
constexpr int kMaxDevices = 16;
constexpr int kDriverVersion = 13000;

// Records `text` as the calling thread's last message and returns `code`.
CUresult fail(CUresult code, std::string text);
const std::string& last_message();
const char* error_name(CUresult code);  // nullptr: no such code

// Objects behind 64-bit handles. A handle holds a generation, so a stale or foreign one is found
// out instead of followed; objects never move.
template <class T, unsigned kKind>
class Slots {
 public:
  uint64_t add(T value) {
    uint32_t index;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
      slots_[index].value = std::move(value);
    } else {
      index = static_cast<uint32_t>(slots_.size());
      slots_.push_back({std::move(value), 1, false});
      // Room for every slot, so that remove() cannot fail.
      if (free_.capacity() < slots_.size()) free_.reserve(2 * slots_.size());
    }
    slots_[index].live = true;
    ++live_;
    return id(index);
  }
  T* find(uint64_t handle) {
    const uint64_t index = (handle & 0xffffffffu) >> 4;
    if ((handle & 15) != kKind || index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    return slot.live && slot.generation == handle >> 32 ? &slot.value : nullptr;
  }
  void remove(uint64_t handle) {
    const auto index = static_cast<uint32_t>((handle & 0xffffffffu) >> 4);
    slots_[index].live = false;
    slots_[index].value = T{};
    ++slots_[index].generation;
    free_.push_back(index);
    --live_;
  }
  uint64_t id(uint32_t index) const {
    return uint64_t{slots_[index].generation} << 32 | uint64_t{index} << 4 | kKind;
  }
  static uint32_t index_of(uint64_t handle) {
    return static_cast<uint32_t>((handle & 0xffffffffu) >> 4);
  }
  T& at(uint32_t index) { return slots_[index].value; }
  size_t live() const { return live_; }
  template <class F>
  void for_each(F&& visit) {
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].live) visit(id(i), slots_[i].value);
    }
  }

 private:
  struct Slot {
    T value;
    uint32_t generation;
    bool live;
  };
  std::deque<Slot> slots_;
  std::vector<uint32_t> free_;
  size_t live_ = 0;
};

}  // namespace simcuda
