// `expandable`: a model of PyTorch's caching allocator with expandable_segments:True. Each (pool,
// stream) has one long stretch of address space. It grows by handles of 2 MiB (small pool) or 20
// MiB (large pool), at the lowest address where the request fits. Idle pages are unmapped and
// released only when an allocation fails.
//
// Source and known differences: caching_policy.h. The model also has these rules. The address space
// is 9/8 of the device's memory, and when it is used up, one more segment is reserved. Blocks with
// unmapped memory behind them are taken last. A failed growth keeps what it had mapped. Prices: one
// create, map, unmap and release for each handle, and one set-access for each contiguous mapping.
// The host's wait before each unmapped run is counted as a wait, unless work completes at once.
#pragma once

#include <list>

#include "caching_policy.h"

namespace glake::replay {

struct Segment {
  uint64_t base;
  uint64_t handle_bytes;
  uint64_t span;
};

class ExpandablePolicy : public CachingPolicy {
 public:
  explicit ExpandablePolicy(const PolicyConfig& config) : CachingPolicy(config) {}
  DriverCalls growth_calls(uint64_t bytes) const override {
    DriverCalls calls;
    calls.add_handles(bytes, bytes > kSmallSegment ? kLargeSegment : kSmallSegment);
    return calls;
  }

 protected:
  IdleIterator choose(Pool& pool, IdleIterator first) override;
  bool should_split(const Pool& pool, uint64_t remaining) const override;
  Block* grow(Pool& pool, uint32_t stream, uint64_t bytes) override;
  void release_idle(Pool& pool) override;

 private:
  Block* find_space(Pool& pool, uint32_t stream, uint64_t bytes);
  Block* reserve_segment(Pool& pool, uint32_t stream, uint64_t bytes);
  bool map_front(Pool& pool, Block* block, uint64_t bytes);
  Block* unmap(Pool& pool, Block* block);

  std::list<Segment> segments_;
  uint64_t next_base_ = kLargeSegment;
};

}  // namespace glake::replay
