// What the debug modes (debug/debug_device.h) do for a device's heaps. A device without debug modes
// has no such hooks.
#pragma once

#include <cstdint>

#include "driver/driver.h"

namespace glake {

class DebugHooks {
 public:
  virtual ~DebugHooks() = default;

  // Bytes by which a block is longer than its caller asked.
  virtual Bytes overhead() const = 0;
  // Gives back the freed blocks kept from reuse; true if there were any.
  virtual bool release_kept() = 0;
  // The driver takes these bytes of an arena back: what was to be checked there is gone.
  virtual void forget(Address home, Bytes bytes) = 0;
  // Before the device closes. The first refusal stops it, to be tried again.
  virtual Status close() = 0;

  virtual uint64_t checks() const = 0;
  virtual uint64_t skipped() const = 0;
  virtual Bytes kept_bytes() const = 0;
};

}  // namespace glake
