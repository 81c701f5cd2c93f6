#include "transfer/run/stream_gate.h"

#include <utility>

#include "transfer/run/stream_gates.h"

namespace glake::transfer {

StreamGate& StreamGate::operator=(StreamGate&& other) noexcept {
  open();
  owner_ = std::exchange(other.owner_, nullptr);
  word_ = other.word_;
  value_ = other.value_;
  return *this;
}

void StreamGate::open() noexcept {
  if (owner_ == nullptr) return;
  __atomic_store_n(word_, value_, __ATOMIC_RELEASE);
  std::exchange(owner_, nullptr)->give(word_);
}

}  // namespace glake::transfer
