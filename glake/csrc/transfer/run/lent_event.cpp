#include "transfer/run/lent_event.h"

#include "transfer/run/work_streams.h"

namespace glake::transfer {

LentEvent& LentEvent::operator=(LentEvent&& other) noexcept {
  reset();
  owner_ = std::exchange(other.owner_, nullptr);
  device_ = other.device_;
  id_ = other.id_;
  return *this;
}

void LentEvent::reset() {
  if (owner_ != nullptr) std::exchange(owner_, nullptr)->give(device_, id_);
}

}  // namespace glake::transfer
