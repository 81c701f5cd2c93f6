// `bound`: what no allocator can go below, even if it knows the future. The driver hands out memory
// by granules of 2 MiB, and alignment rounds each block up to 512 bytes. So at any moment the
// device must hold at least the sum of the live blocks' rounded bytes, rounded up to granules. An
// allocator that reached this would share every granule between blocks down to 512 bytes, and would
// never have an idle granule. The policy does not say whether an allocator can reach the bound for
// a given trace, because live blocks cannot be moved, and finding the best places is a hard
// problem. The bound ignores streams: memory of a freed block counts as free at once, as if its
// work were waited for.
//
// It makes no driver call and places nothing.
#pragma once

#include <string>
#include <vector>

#include "policy.h"

namespace glake::replay {

class BoundPolicy : public Policy {
 public:
  explicit BoundPolicy(const PolicyConfig& config) : capacity_(config.capacity) {}
  uint64_t allocate(uint64_t bytes, uint32_t stream) override;
  void release(uint64_t block) override;
  void record_stream(uint64_t, uint32_t) override {}
  void tick() override {}
  uint64_t physical_bytes() const override;
  DriverCalls calls() const override { return {}; }
  DriverCalls growth_calls(uint64_t) const override { return {}; }
  std::string oom_message() const override { return oom_message_; }
  void check() const override;

 private:
  const uint64_t capacity_;
  uint64_t live_ = 0;            // of all blocks, each rounded up
  std::vector<uint64_t> sizes_;  // by block; 0 if the block is gone
  std::vector<uint64_t> spare_;
  std::string oom_message_;
};

}  // namespace glake::replay
