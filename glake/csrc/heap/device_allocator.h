// One device's allocator, as the process uses it: requests, and what else can be asked of a device.
#pragma once

#include <memory>

#include "heap/contiguous_blocks.h"
#include "heap/device.h"
#include "heap/invariants.h"
#include "heap/limits.h"
#include "heap/peers.h"
#include "heap/pools.h"
#include "heap/reclaim.h"
#include "heap/regions.h"
#include "heap/report.h"
#include "heap/sharing.h"
#include "heap/snapshot_walk.h"
#include "heap/virtual_ranges.h"
#include "memory/fair_mutex.h"

namespace glake {

class DeviceAllocator {
 public:
  // Makes no driver call; start() does.
  DeviceAllocator(Driver& driver, int number, const Options& options);
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  // Attaches the device and reserves its arenas, once. Throws Error; what was done stays for the
  // next try, or for close().
  void start();
  // Gives everything back. Throws Error while blocks are live or the driver refuses.
  void close();
  // Throws Error where callers hold blocks, or freed ones may still be used by work that cannot be
  // waited for. Empties the threads' caches.
  void require_no_blocks();

  int number() const { return device_.number; }
  // A live block of at least `bytes` and `guards`; statistics count `bytes` as requested. Throws
  // Error (GLAKE_OUT_OF_MEMORY, GLAKE_DRIVER_ERROR). Freed by its heap (Heap::free).
  Block* allocate(Bytes bytes, StreamHandle stream, ThreadCache& cache, Bytes guards = 0) {
    Block* b = cache.hit(bytes, stream, guards);
    return b != nullptr ? b : find(bytes, stream, cache, guards);
  }
  // Blocks of one driver allocation each.
  ContiguousBlocks contiguous() { return ContiguousBlocks(device_); }
  Pools pools() { return Pools(device_); }
  Regions regions() { return Regions(device_); }
  VirtualRanges virtual_ranges() { return VirtualRanges(device_.heaps.own()); }
  Sharing sharing() { return Sharing(device_); }
  Peers peers() { return Peers(device_); }
  Limits limits() { return Limits(device_); }
  Reclaim reclaim() { return Reclaim(device_); }
  Report report() { return Report(device_); }
  Snapshot snapshot() { return SnapshotWalk(device_).take(); }
  void check() { Invariants(device_).check(); }

  ThreadCache* make_cache();
  // The cache's thread ends.
  void drop_cache(ThreadCache* cache);
  // Whether a call has named the stream.
  bool knows(StreamHandle handle);
  // The stream ends. A thread's own stream ends with its thread.
  void forget_stream(StreamHandle handle);
  // The stream may end soon. What must be asked of it is asked now, while its handle is valid.
  void stream_may_end(StreamHandle handle);

  Bytes owed_bytes() const { return device_.memory.owed_bytes(); }
  void memory_info(Bytes* free, Bytes* total);  // throws Error
  Bytes driver_free_bytes();                    // what the driver reports; 0 if it does not
  // Work that `stream` gets from now on waits for the work that `other` has already. Throws Error.
  void stream_wait(StreamHandle stream, StreamHandle other);
  bool capturing();  // whether any stream that was named is being captured
  // Notes that work has been enqueued that no ticket names. It may use any block's memory.
  void note_unticketed();
  // A request that was refused is tried again, so that the first refusal does not count.
  void forgive_refusal();
  FairMutex& mapping_lock() { return device_.slow; }

  // Other processes are asked for memory before a request is refused. Null: they are not.
  void use_neighbours(Neighbours* neighbours) { device_.neighbours = neighbours; }
  bool has_neighbours() const { return device_.neighbours != nullptr; }
  // Gives back idle memory to another process that has run out. Throws Error (Reclaim::give_some).
  Bytes give_neighbour(Bytes bytes);

  // The debug modes keep freed blocks from reuse for a while. Null without them.
  DebugHooks* debug_hooks() { return device_.debug.get(); }
  void set_debug(std::unique_ptr<DebugHooks> debug) { device_.debug = std::move(debug); }

 private:
  void save_stream_ids();
  Block* find(Bytes bytes, StreamHandle stream, ThreadCache& cache, Bytes guards);

  Device device_;
};

}  // namespace glake
