// Gives a device's idle memory back to the driver, as callers ask for it. Needs slow.
#pragma once

#include "heap/device.h"

namespace glake {

class Reclaim {
 public:
  explicit Reclaim(Device& device) : device_(device) {}

  // As glake_empty_cache(); takes the locks. Throws Error.
  void empty_cache();
  // Counts `bytes` of another allocator's memory against the limit, after making room for them. If
  // negative, takes as much of the claim back. Takes the locks. Throws Error.
  void claim_outside(int64_t bytes);

  // Everything idle, after all the device's work where that may be waited for. Throws Error if the
  // wait is refused.
  void give_back(HotGuard& hot);
  // The same, as far as it can be had.
  void give_back_idle(HotGuard& hot);
  // A driver that keeps memory it was to take back must not go unnoticed: what is asked for next,
  // by whoever it was made room for, may not be there. Throws Error.
  void require_all_given();
  // Idle granules that the driver refused to unmap: no more than there are, since two views that
  // stay may have the same one.
  Granules kept_mapped();

 private:
  // What the device's own heap and the pools nobody uses can give back.
  void trim_heaps(bool synced, HotGuard& hot);

  Device& device_;
};

}  // namespace glake
