// The heaps of a device: its own, those of its private pools, and spare ones. A heap whose pool has
// ended serves the next pool, addresses and all.
//
// Under the device's hot lock, own() apart; changed under both locks.
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
  // All that have had memory, the device's own first.
  std::vector<Heap*> started();
  // Those of private pools.
  const std::map<PoolId, std::unique_ptr<Heap>>& pools() const { return pools_; }
  // The pool's; null: it has none.
  Heap* find(PoolId id);
  // The pool's, made if need be. `id` is its pool's from then on.
  Heap& open(PoolId id);
  // Pools of which this is true have ended: their heaps are spare.
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
  // Gives all addresses of pools' heaps back; a refusal stops it, to be tried again.
  Status close_pools();

 private:
  Device& device_;
  std::unique_ptr<Heap> own_;
  std::map<PoolId, std::unique_ptr<Heap>> pools_;
  std::vector<std::unique_ptr<Heap>> spare_;
};

}  // namespace glake
