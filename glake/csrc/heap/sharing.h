// What others have of a device's memory: pins, blocks that other processes may open, and what this
// process has opened of others. Each method takes the lock it needs.
#pragma once

#include <string>
#include <vector>

#include "heap/device.h"

namespace glake {

// A block as another process must know it to map it.
struct SharedBlock {
  Address ptr = 0;
  Bytes bytes = 0;              // as asked for
  Bytes offset = 0;             // of the block in its first handle
  Bytes handle_bytes = 0;       // of each handle
  std::vector<Handle> handles;  // in the block's order; none of a legacy one
  bool legacy = false;
};

class Sharing {
 public:
  explicit Sharing(Device& device) : device_(device) {}

  // Keeps what lies under a live block where it is. Throws Error.
  void pin(const Block& block, const CallerBlock& called, PinOwner owner);
  // False if that owner has no pin there.
  bool unpin(Address ptr, PinOwner owner);
  uint64_t pins(PinOwner owner);
  uint64_t pinned_granules();  // under hot

  // Lets other processes open the block under this number, until it is freed: `id` if it has none.
  // Throws Error.
  uint64_t share(Block& block, const CallerBlock& called, uint64_t id);
  // Pins a shared block for another process and says how it is made. False once it is freed.
  bool open(uint64_t id, SharedBlock* shared);

  // The driver refuses to take back what was opened of another process; it did after all.
  void owe_imported(Bytes memory, Bytes addresses, const std::string& said);
  void pay_imported(Bytes memory, Bytes addresses);

 private:
  Device& device_;
};

}  // namespace glake
