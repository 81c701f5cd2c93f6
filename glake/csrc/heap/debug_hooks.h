// What the debug modes (debug/debug_device.h) do for a device's heaps. A device without debug modes
// has no such hooks.
#pragma once

#include <cstdint>

#include "driver/driver.h"

namespace glake {

class DebugHooks {
 public:
  virtual ~DebugHooks() = default;

  // How many bytes a block is longer than its caller asked.
  virtual Bytes overhead() const = 0;
  // Gives back freed blocks that are kept from reuse. True if there were any.
  virtual bool release_kept() = 0;
  // The driver takes these bytes of an arena back, so they can no longer be checked.
  virtual void forget(Address home, Bytes bytes) = 0;
  // Called before the device closes. The first refusal stops it, and the caller may try again.
  virtual Status close() = 0;

  virtual uint64_t checks() const = 0;
  virtual uint64_t skipped() const = 0;
  virtual Bytes kept_bytes() const = 0;
};

}  // namespace glake
