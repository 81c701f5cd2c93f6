// Words in pinned host memory that callers' streams wait for: a transfer holds its stream by one,
// and lets it go by storing a number.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "driver/driver.h"

namespace glake {
class HostPool;
}

namespace glake::transfer {

class StreamGates;

// One word, lent to one transfer. Its number only grows, so it may be lent again while a stream
// has not come to the wait for an earlier one yet.
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

class StreamGates {
 public:
  explicit StreamGates(HostPool& pool) : pool_(pool) {}
  StreamGates(const StreamGates&) = delete;
  StreamGates& operator=(const StreamGates&) = delete;

  StreamGate take();  // throws Error when there is no pinned memory
  void give(uint32_t* word) noexcept;
  // Gives the memory back; no stream may wait any more.
  void close();

 private:
  HostPool& pool_;
  std::mutex mutex_;
  std::vector<void*> pages_;
  std::vector<uint32_t*> spare_;
};

}  // namespace glake::transfer
