// Blocks that are made while caching is switched off, for debugging. Each is a driver allocation of
// its own, which goes back at its free. They are in no statistic, as in torch, but count against
// the limit.
#pragma once

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "torch/cuda/block_listeners.h"
#include "torch/library.h"

namespace glake::adapter {

class UncachedBlocks {
 public:
  struct Block {
    size_t bytes = 0;  // as asked for
    int device = 0;
  };

  // Caching is off from the start if torch's own switch is set.
  UncachedBlocks(const CudaLibrary& library, const BlockListeners& listeners);

  void set_caching(bool value) { caching_.store(value); }
  bool caching() const { return caching_.load(std::memory_order_relaxed); }

  void* obtain(size_t bytes, int device);
  // give_back() and describe() return false for a block that is not one of these.
  bool give_back(void* ptr);
  bool describe(const void* ptr, Block* out) const;
  bool any() const { return any_.load(std::memory_order_acquire); }  // whether one was ever made

 private:
  const CudaLibrary& library_;
  const BlockListeners& listeners_;
  std::atomic<bool> caching_{true};
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;
};

}  // namespace glake::adapter
