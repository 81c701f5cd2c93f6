// Shared by all parts of simcuda: the driver's own types, the granule, slot tables, and error
// texts. A slot table gives objects handles that are safe to look up after the object is destroyed.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
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
#undef cuGraphNodeGetDependencies
#undef cuStreamUpdateCaptureDependencies

#define SIMCUDA_EXPORT extern "C" __attribute__((visibility("default")))

namespace simcuda {

constexpr size_t kGranule = size_t{2} << 20;
constexpr int kMaxDevices = 16;
constexpr int kDriverVersion = 13000;

// A lock on the driver's mutex.
using Lock = std::unique_lock<std::mutex>;

// Records `text` as the calling thread's last message and returns `code`.
CUresult fail(CUresult code, std::string text);
// The error if the system has no addresses for a table of `bytes`.
CUresult no_addresses(uint64_t bytes);
const std::string& last_message();
const char* error_name(CUresult code);  // nullptr: no such code

// Objects with 64-bit handles. A handle holds a generation, so a stale or foreign handle is
// detected and not followed. Objects never move. The low bits of a handle are 0, like a pointer's,
// because PyTorch tells its own streams from others by the lowest bit.
template <class T, unsigned kKind>
class Slots {
 public:
  uint64_t add(T value) {
    if (free_.empty()) grow();
    const uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = at_slot(index);
    slot.value = std::move(value);
    slot.live = true;
    ++live_;
    return id(index);
  }
  // Whether it may be a handle of this table, by its kind alone. Needs no lock.
  static bool is_kind(uint64_t handle) { return (handle & 255) == kKind << 4; }
  T* find(uint64_t handle) {
    const uint64_t index = index_of(handle);
    if (!is_kind(handle) || index >= chunks_.size() * kChunk) return nullptr;
    Slot& slot = at_slot(static_cast<uint32_t>(index));
    return slot.live && slot.generation == handle >> 32 ? &slot.value : nullptr;
  }
  // With `again` the next object may have the same handle.
  void remove(uint64_t handle, bool again = false) {
    const uint32_t index = index_of(handle);
    Slot& slot = at_slot(index);
    slot.live = false;
    slot.value = T{};
    if (!again) ++slot.generation;
    free_.push_back(index);  // never reallocates, because there is room for every slot
    --live_;
  }
  uint64_t id(uint32_t index) const {
    return uint64_t{at_slot(index).generation} << 32 | uint64_t{index} << 8 | kKind << 4;
  }
  static uint32_t index_of(uint64_t handle) {
    return static_cast<uint32_t>((handle & 0xffffffffu) >> 8);
  }
  T& at(uint32_t index) { return at_slot(index).value; }
  const T& at(uint32_t index) const { return at_slot(index).value; }
  size_t live() const { return live_; }
  template <class F>
  void for_each(F&& visit) const {
    for (uint32_t i = 0; i < chunks_.size() * kChunk; ++i) {
      if (at_slot(i).live) visit(id(i), static_cast<const T&>(at_slot(i).value));
    }
  }
  template <class F>
  void for_each(F&& visit) {
    for (uint32_t i = 0; i < chunks_.size() * kChunk; ++i) {
      if (at_slot(i).live) visit(id(i), at_slot(i).value);
    }
  }

 private:
  static constexpr uint32_t kChunk = 256;
  struct Slot {
    T value{};
    uint32_t generation = 1;
    bool live = false;
  };
  Slot& at_slot(uint32_t index) const { return chunks_[index / kChunk][index % kChunk]; }
  void grow() {
    const auto first = static_cast<uint32_t>(chunks_.size()) * kChunk;
    if (free_.capacity() < first + kChunk) free_.reserve(2 * (first + kChunk));
    chunks_.push_back(std::make_unique<Slot[]>(kChunk));
    for (uint32_t i = kChunk; i-- > 0;) free_.push_back(first + i);
  }

  std::vector<std::unique_ptr<Slot[]>> chunks_;
  std::vector<uint32_t> free_;
  size_t live_ = 0;
};

}  // namespace simcuda
