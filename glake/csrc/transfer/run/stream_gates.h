// Words of pinned host memory for which callers' streams wait. A transfer holds its stream by one,
// and releases the stream by storing a number.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "driver/driver.h"
#include "transfer/run/stream_gate.h"

namespace glake {
class HostPool;
}

namespace glake::transfer {

class StreamGates {
 public:
  explicit StreamGates(HostPool& pool) : pool_(pool) {}
  StreamGates(const StreamGates&) = delete;
  StreamGates& operator=(const StreamGates&) = delete;

  StreamGate take();  // throws Error when there is no pinned memory
  void give(uint32_t* word) noexcept;
  // Gives the memory back. No stream may wait any more.
  void close();

 private:
  HostPool& pool_;
  std::mutex mutex_;
  std::vector<void*> pages_;
  std::vector<uint32_t*> spare_;
};

}  // namespace glake::transfer
