// A device's private pools, by id. Methods take the locks themselves, except where a comment says
// otherwise. They throw Error.
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
  // Allocates at exactly `ptr`.
  Block* allocate_at(PoolId id, Address ptr, Bytes bytes, StreamHandle stream);
  void empty(PoolId id);
  Checkpoint checkpoint(PoolId id);
  RestoreLog restore(PoolId id, const Checkpoint& then);

  // The pool's heap. Throws Error if there is no such pool. Callers hold both locks.
  Heap& need(PoolId id);
  // Ends pools that have no users, no blocks and no memory, so that their heaps can serve other
  // pools. Callers hold both locks.
  void end_unused();
  // Makes all pools count as unused. It is called before the device is closed.
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
