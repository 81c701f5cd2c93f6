// How others use a device's memory: pins, and blocks that other processes may open. It also counts
// what this process has opened of others. Each method takes the lock that it needs.
#pragma once

#include <string>
#include <vector>

#include "heap/device.h"

namespace glake {

// What another process must know of a block to map it.
struct SharedBlock {
  Address ptr = 0;
  Bytes bytes = 0;              // as asked for
  Bytes offset = 0;             // of the block in its first handle
  Bytes handle_bytes = 0;       // of each handle
  std::vector<Handle> handles;  // in the block's order; empty for a legacy block
  bool legacy = false;
};

class Sharing {
 public:
  explicit Sharing(Device& device) : device_(device) {}

  // Keeps what lies under a live block in place. Throws Error.
  void pin(const Block& block, const CallerBlock& called, PinOwner owner);
  // False if that owner has no pin there.
  bool unpin(Address ptr, PinOwner owner);
  uint64_t pins(PinOwner owner);
  uint64_t pinned_granules();  // callers hold the hot lock

  // Lets other processes open the block until it is freed. `id` is the block's number if it has
  // none yet. Returns its number. Throws Error.
  uint64_t share(Block& block, const CallerBlock& called, uint64_t id);
  // Pins a shared block for another process, and describes it. False once it is freed.
  bool open(uint64_t id, SharedBlock* shared);

  // owe_imported(): the driver refuses to take back what was opened of another process.
  // pay_imported(): later it did take it.
  void owe_imported(Bytes memory, Bytes addresses, const std::string& said);
  void pay_imported(Bytes memory, Bytes addresses);

 private:
  Device& device_;
};

}  // namespace glake
