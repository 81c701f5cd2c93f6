// A device's blocks of one driver allocation each: where they come from, and what is tried before a
// new allocation. Allocations count against the limit, and wait for streams, as granules do.
#pragma once

#include <memory>

#include "heap/device.h"

namespace glake {

class ContiguousBlocks {
 public:
  explicit ContiguousBlocks(Device& device) : device_(device) {}

  // Takes the locks. Throws Error.
  Block* allocate(Bytes bytes, StreamHandle stream, const Asked& asked);
  // Callers hold the hot lock.
  void free(Block* block);
  // Waits for the work of cached allocations and gives them back to the driver. True if that freed
  // memory.
  bool trim(HotGuard& hot);

 private:
  Block* find_or_make(Bytes bytes, StreamHandle stream, const Asked& asked);
  Block* hand_out(Allocation* allocation, const Request& r, StreamHandle stream);
  std::unique_ptr<Allocation> make(int kind, Bytes bytes, HotGuard& hot, Status* refused);
  Error no_room(const Request& r, const Asked& asked, Status refused, HotGuard& hot);

  Device& device_;
};

}  // namespace glake
