// Counters under PyTorch's own names (c10/core/CachingDeviceAllocator.h, torch.cuda.memory_stats).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "base/types.h"

namespace glake {

struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void add(int64_t n) {
    current += n;
    allocated += n;
    peak = std::max(peak, current);
  }
  void subtract(int64_t n) {
    current -= n;
    freed += n;
  }
  void take_back(int64_t n) {  // undoes the last subtraction
    current += n;
    freed -= n;
  }
  void reset_peak() { peak = current; }
  void reset_accumulated() { allocated = freed = 0; }
  void become(int64_t n) {
    if (n > current) add(n - current);
    if (n < current) subtract(current - n);
  }
};

// One statistic for all memory and for each of PyTorch's two pools.
struct PoolStat {
  Stat all, small, large;
  void add(bool is_small, int64_t n) {
    all.add(n);
    (is_small ? small : large).add(n);
  }
  void subtract(bool is_small, int64_t n) {
    all.subtract(n);
    (is_small ? small : large).subtract(n);
  }
  void take_back(bool is_small, int64_t n) {
    all.take_back(n);
    (is_small ? small : large).take_back(n);
  }
  // Moves a count from one pool to the other. `all` does not change.
  void move(bool to_small, int64_t n) {
    (to_small ? large : small).subtract(n);
    (to_small ? small : large).add(n);
  }
  void reset_peak() {
    all.reset_peak();
    small.reset_peak();
    large.reset_peak();
  }
  void reset_accumulated() {
    all.reset_accumulated();
    small.reset_accumulated();
    large.reset_accumulated();
  }
  void become(int64_t small_now, int64_t large_now) {
    all.become(small_now + large_now);
    small.become(small_now);
    large.become(large_now);
  }
};

// What a thread's cache has counted for one pool since it last passed its counts on. `highest_*`
// are the most by which allocations exceeded frees meanwhile, so that one thread's peak is exact.
struct StatDelta {
  int64_t allocations = 0, frees = 0;
  int64_t bytes_allocated = 0, bytes_freed = 0;
  int64_t requested_allocated = 0, requested_freed = 0;
  int64_t highest_bytes = 0, highest_requested = 0, highest_count = 0;
  void allocate(Bytes size, Bytes requested) {
    ++allocations;
    bytes_allocated += static_cast<int64_t>(size);
    requested_allocated += static_cast<int64_t>(requested);
    highest_count = std::max(highest_count, allocations - frees);
    highest_bytes = std::max(highest_bytes, bytes_allocated - bytes_freed);
    highest_requested = std::max(highest_requested, requested_allocated - requested_freed);
  }
  void free(Bytes size, Bytes requested) {
    ++frees;
    bytes_freed += static_cast<int64_t>(size);
    requested_freed += static_cast<int64_t>(requested);
  }
  bool empty() const { return allocations == 0 && frees == 0; }
};

// These count as PyTorch's do. A block counts as allocated until it is freed. It counts as active,
// and so do its requested bytes, until the free has completed: a freed block may still wait for
// recorded streams or for the end of a capture. As in PyTorch, expandable segments count in no
// segment or split statistic. All memory of glake counts as expandable segments, except contiguous
// blocks.
struct Stats {
  PoolStat allocation, allocated_bytes, active, active_bytes, requested_bytes;
  PoolStat segment, reserved_bytes;
  int64_t waiting_requested = 0;  // part of requested_bytes: freed blocks that are still active
  PoolStat inactive_split, inactive_split_bytes;  // as of the last query
  uint64_t alloc_retries = 0, ooms = 0, device_syncs = 0;
  uint64_t stitches = 0, stitched_bytes = 0, view_hits = 0, run_hits = 0, edge_stitches = 0,
           extensions = 0;
  uint64_t evictions = 0, growths = 0, cross_stream_hits = 0, repeats = 0;
  uint64_t segments_walked = 0;  // spans that were examined for memory to give back
  uint64_t views_walked = 0;     // views that were examined for room, or to be dropped
  // How often other processes were asked for memory; bytes that they gave; bytes given to them.
  uint64_t neighbours_asked = 0, neighbours_gave = 0, gave_neighbours = 0;

  void allocate(bool small, Bytes size, Bytes requested) {
    for (PoolStat* count : {&allocation, &active}) count->add(small, 1);
    for (PoolStat* sum : {&allocated_bytes, &active_bytes}) {
      sum->add(small, static_cast<int64_t>(size));
    }
    requested_bytes.add(small, static_cast<int64_t>(requested));
  }
  void free(bool small, Bytes size, Bytes requested) {
    for (PoolStat* count : {&allocation, &active}) count->subtract(small, 1);
    for (PoolStat* sum : {&allocated_bytes, &active_bytes}) {
      sum->subtract(small, static_cast<int64_t>(size));
    }
    requested_bytes.subtract(small, static_cast<int64_t>(requested));
  }
  // The free that was just counted has not completed. done_waiting() follows when it has.
  void wait(bool small, Bytes size, Bytes requested) {
    active.take_back(small, 1);
    active_bytes.take_back(small, static_cast<int64_t>(size));
    requested_bytes.take_back(small, static_cast<int64_t>(requested));
    waiting_requested += static_cast<int64_t>(requested);
  }
  void done_waiting(bool small, Bytes size, Bytes requested) {
    active.subtract(small, 1);
    active_bytes.subtract(small, static_cast<int64_t>(size));
    requested_bytes.subtract(small, static_cast<int64_t>(requested));
    waiting_requested -= static_cast<int64_t>(requested);
  }
  void merge(bool small, const StatDelta& d);
  void reset_peaks();
  void reset_accumulated();

 private:
  std::array<PoolStat*, 9> all() {
    return {&allocation, &allocated_bytes, &active,         &active_bytes,        &requested_bytes,
            &segment,    &reserved_bytes,  &inactive_split, &inactive_split_bytes};
  }
};

// These append one more member to {"a.b": 1, ...}.
void append_number(std::string& json, const std::string& key, int64_t value);
void append_stat(std::string& json, const std::string& name, const PoolStat& stat);

}  // namespace glake
