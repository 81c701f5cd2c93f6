// A device's private pools, by id. Each method takes the locks, but where it takes a guard. Throws
// Error.
#pragma once

#include "heap/checkpoint.h"
#include "heap/device.h"

namespace glake {

class Pools {
 public:
  explicit Pools(Device& device) : device_(device) {}

  void retain(PoolId id);
  void release(PoolId id);
  int users(PoolId id);
  void set_flags(PoolId id, unsigned flags);
  Block* allocate(PoolId id, Bytes bytes, StreamHandle stream);
  // At exactly `ptr`.
  Block* allocate_at(PoolId id, Address ptr, Bytes bytes, StreamHandle stream);
  void empty(PoolId id);
  Checkpoint checkpoint(PoolId id);
  RestoreLog restore(PoolId id, const Checkpoint& then);

  // For the device, under both locks: a pool that there is; pools with neither users nor blocks nor
  // memory are no more, and their heaps serve others.
  Heap& need(PoolId id);
  void end_unused();
  // Before the device is closed: no pool has users any more.
  void abandon();

 private:
  Heap* find(PoolId id);
  Heap& open(PoolId id);
  static void start(Heap& pool, HotGuard& hot);
  Request request(Heap& pool, Bytes bytes, StreamHandle stream);
  static Block* quick(Heap& pool, const Request& r, StreamHandle stream);

  Device& device_;
};

}  // namespace glake
