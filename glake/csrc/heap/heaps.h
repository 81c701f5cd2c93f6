// The heaps of a device: its own, those of its private pools, and spare ones. A heap whose pool has
// ended serves the next pool, addresses and all.
//
// Callers hold the device's hot lock, except for own(). A change needs both locks.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "heap/heap.h"

namespace glake {

class Heaps {
 public:
  explicit Heaps(Device& device);
  Heaps(const Heaps&) = delete;
  Heaps& operator=(const Heaps&) = delete;
  ~Heaps();

  // The device's own heap.
  Heap& own() { return *own_; }
  // All heaps that have had memory, the device's own first.
  std::vector<Heap*> started();
  // The heaps of private pools.
  const std::map<PoolId, std::unique_ptr<Heap>>& pools() const { return pools_; }
  // The pool's heap; null if it has none.
  Heap* find(PoolId id);
  // The pool's heap. A pool without one gets a spare heap or a new one, which then has this `id`.
  Heap& open(PoolId id);
  // Ends the pools for which `ended` is true. Their heaps become spare.
  template <typename Ended>
  void retire(Ended&& ended) {
    for (auto it = pools_.begin(); it != pools_.end();) {
      if (!ended(*it->second)) {
        ++it;
        continue;
      }
      spare_.push_back(std::move(it->second));
      it = pools_.erase(it);
    }
  }
  // Gives back all addresses of the pools' heaps. It stops at a refusal, and may be called again.
  Status close_pools();

 private:
  Device& device_;
  std::unique_ptr<Heap> own_;
  std::map<PoolId, std::unique_ptr<Heap>> pools_;
  std::vector<std::unique_ptr<Heap>> spare_;
};

}  // namespace glake
