// `native`: a model of PyTorch's caching allocator at its default settings. Requests up to 1 MiB
// share 2 MiB segments, up to 10 MiB 20 MiB segments, larger ones get a segment rounded up to 2
// MiB; blocks are split and coalesced inside a segment, never across; wholly idle segments go back
// to the driver only when an allocation fails.
//
// Source and known differences: caching_policy.h. cudaMalloc and cudaFree are a call each. The
// host waits counted are those for recorded streams' events before idle segments are
// released.
#pragma once

#include "caching_policy.h"

namespace glake::replay {

// Bytes of the segment made for a request.
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
