// A word of pinned host memory (stream_gates.h), lent to one transfer. A caller's stream waits for
// its value. The value only grows. So the word may be lent again before a stream has reached the
// wait for an earlier value.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace glake::transfer {

class StreamGates;

class StreamGate {
 public:
  StreamGate() = default;
  StreamGate(StreamGates* owner, uint32_t* word, uint32_t value)
      : owner_(owner), word_(word), value_(value) {}
  StreamGate(StreamGate&& other) noexcept { *this = std::move(other); }
  StreamGate& operator=(StreamGate&& other) noexcept;
  ~StreamGate() { open(); }

  Address at() const { return reinterpret_cast<Address>(word_); }
  uint32_t value() const { return value_; }
  explicit operator bool() const { return owner_ != nullptr; }
  void open() noexcept;

 private:
  StreamGates* owner_ = nullptr;
  uint32_t* word_ = nullptr;
  uint32_t value_ = 0;
};

}  // namespace glake::transfer
