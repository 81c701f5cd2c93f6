// What the heaps of one device have in common: its own, and those of its private pools.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/stats.h"
#include "memory/address_space.h"
#include "memory/block.h"
#include "memory/contiguous.h"
#include "memory/hot_lock.h"
#include "memory/streams.h"

namespace glake {

using PoolId = std::pair<uint64_t, uint64_t>;  // as glake_pool; {0, 0} is the device's own memory

// A block that other processes may open, as its caller has it.
struct Share {
  Block* block;
  Address ptr;
  Bytes bytes;
};

struct DeviceShared {
  DeviceShared(Driver& driver, int device);
  ~DeviceShared();

  HotLock hot;
  FairMutex slow;
  StreamClock clock;
  Stats stats;
  BlockPool blocks;
  Refusals refusals;
  DeferredReleases deferred;
  ContiguousPool contiguous;
  std::unordered_map<uint64_t, Share> shares;  // by number
  std::vector<int> grants;                     // devices every mapping is accessible from
  std::atomic<uint64_t> physical{0};           // granules behind all heaps
  // Of other processes' blocks that the driver refused to take back: memory, and addresses alone.
  std::atomic<Bytes> imported{0}, imported_addresses{0};
  Bytes outside = 0;  // claimed for other allocators' memory (glake_claim_outside)
  Granules limit;
  double limit_fraction = 0;  // as set at run time; 0: not
  Bytes total_memory = 0;
  DeviceAllocator* own = nullptr;  // the device's own heap
  bool attached = false;
  bool driver_full = false;
  // Of the driver's last refusal to grow, under slow: whether it was of the request under way, how
  // many granules it had then, how many more it reported free, and what it said.
  bool refused_now = false;
  Granules had, withheld;
  std::string refusal;
  // Of views it refused, until it takes memory back: how many granules at most it maps side by
  // side, and what it said; empty: it refused none.
  Granules stitch_most;
  std::string stitch_refusal;
  // It has refused a contiguous block, by kind as ContiguousPool has them: what it reports free is
  // no measure of the next.
  bool chunk_refused[2] = {false, false};
  uint64_t creates_before = 0, releases_before = 0;  // driver calls the reset counts leave out

  // Changed under both locks; a heap whose pool has ended serves the next one, addresses and all.
  std::map<PoolId, std::unique_ptr<DeviceAllocator>> pools;
  std::vector<std::unique_ptr<DeviceAllocator>> spare;
};

}  // namespace glake
