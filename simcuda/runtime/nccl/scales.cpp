#include "scales.h"

namespace nccl {

int Scales::add(double value, const void* address, int type) {
  const std::lock_guard<std::mutex> lock(mutex_);
  scales_[next_] = {value, address, type};
  return next_++;
}

bool Scales::drop(int op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return scales_.erase(op) == 1;
}

bool Scales::find(int op, Part* part) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = scales_.find(op);
  if (found == scales_.end() || found->second.type != part->type) return false;
  part->scale = found->second.value;
  part->scale_address = found->second.address;
  return true;
}

}  // namespace nccl
