// Counts live bytes.
#include "bound_policy.h"

#include <numeric>

#include "base/numbers.h"
#include "caching_policy.h"

namespace glake::replay {

uint64_t BoundPolicy::allocate(uint64_t bytes, uint32_t) {
  const uint64_t size = round_up(bytes, kMinBlock);
  const uint64_t least = round_up(live_ + size, kGranule);
  if (least > capacity_) {
    oom_message_ = "out of memory for any allocator: live blocks need at least " +
                   size_text(least) + " in granules of 2 MiB, " + size_text(least - capacity_) +
                   " more than the capacity of " + size_text(capacity_);
    return 0;
  }
  live_ += size;
  if (spare_.empty()) {
    sizes_.push_back(size);
    return sizes_.size();
  }
  const uint64_t block = spare_.back();
  spare_.pop_back();
  sizes_[block - 1] = size;
  return block;
}

void BoundPolicy::release(uint64_t block) {
  live_ -= sizes_[block - 1];
  sizes_[block - 1] = 0;
  spare_.push_back(block);
}

uint64_t BoundPolicy::physical_bytes() const { return round_up(live_, kGranule); }

void BoundPolicy::check() const {
  if (std::accumulate(sizes_.begin(), sizes_.end(), uint64_t{0}) != live_) {
    throw ReplayError("books do not add up: " + std::to_string(live_) + " bytes live");
  }
}

}  // namespace glake::replay
