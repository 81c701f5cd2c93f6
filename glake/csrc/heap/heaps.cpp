#include "heap/heaps.h"

#include "heap/device.h"

namespace glake {

Heaps::Heaps(Device& device) : device_(device), own_(std::make_unique<Heap>(device, nullptr)) {}

Heaps::~Heaps() = default;

std::vector<Heap*> Heaps::started() {
  std::vector<Heap*> all;
  if (own_->started) all.push_back(own_.get());
  for (auto& [id, pool] : pools_) {
    if (pool->started) all.push_back(pool.get());
  }
  return all;
}

Heap* Heaps::find(PoolId id) {
  auto found = pools_.find(id);
  return found != pools_.end() ? found->second.get() : nullptr;
}

Heap& Heaps::open(PoolId id) {
  std::unique_ptr<Heap>& heap = pools_[id];
  if (heap == nullptr && !spare_.empty()) {
    heap = std::move(spare_.back());
    spare_.pop_back();
  }
  if (heap == nullptr) heap = std::make_unique<Heap>(device_, std::make_unique<Pool>());
  heap->pool->id = id;
  return *heap;
}

Status Heaps::close_pools() {
  Status s;
  auto close = [&s](Heap& heap) {
    heap.started = false;
    s = heap.release_ranges();
    return s.ok();
  };
  while (!pools_.empty() && close(*pools_.begin()->second)) pools_.erase(pools_.begin());
  while (s.ok() && !spare_.empty() && close(*spare_.back())) spare_.pop_back();
  return s;
}

}  // namespace glake
