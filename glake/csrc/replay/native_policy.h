// `native`: a model of PyTorch's caching allocator at its default settings. Requests of up to 1 MiB
// share segments of 2 MiB, and those of up to 10 MiB share segments of 20 MiB. A larger request
// gets a segment of its own size, rounded up to 2 MiB. Blocks are split and coalesced only within a
// segment. Wholly idle segments go back to the driver only when an allocation fails.
//
// Source and known differences: caching_policy.h. Each cudaMalloc and cudaFree is one call. The
// host waits only for the events of recorded streams, before idle segments are released, and these
// waits are counted.
#pragma once

#include "caching_policy.h"

namespace glake::replay {

// The size of the segment that is made for a request.
uint64_t segment_bytes(uint64_t bytes);

class NativePolicy : public CachingPolicy {
 public:
  explicit NativePolicy(const PolicyConfig& config) : CachingPolicy(config) {}
  DriverCalls growth_calls(uint64_t bytes) const override {
    DriverCalls calls;
    calls.add(Call::kMalloc, bytes);
    return calls;
  }

 protected:
  bool should_split(const Pool& pool, uint64_t remaining) const override;
  Block* grow(Pool& pool, uint32_t stream, uint64_t bytes) override;
  void release_idle(Pool& pool) override;

  uint64_t next_address_ = kGranule;
};

}  // namespace glake::replay
