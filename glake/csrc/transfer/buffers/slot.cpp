#include "transfer/buffers/slot.h"

#include "transfer/buffers/slots.h"

namespace glake::transfer {

Slot& Slot::operator=(Slot&& other) noexcept {
  reset();
  owner_ = std::exchange(other.owner_, nullptr);
  place_ = other.place_;
  bytes_ = other.bytes_;
  at_ = other.at_;
  return *this;
}

void Slot::reset() {
  if (owner_ != nullptr) std::exchange(owner_, nullptr)->take_back(place_, bytes_, at_);
}

}  // namespace glake::transfer
