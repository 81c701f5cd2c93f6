// Gives a device's idle memory back to the driver when callers ask for it. Callers hold the slow
// lock.
#pragma once

#include <vector>

#include "heap/device.h"

namespace glake {

class Reclaim {
 public:
  explicit Reclaim(Device& device) : device_(device) {}

  // Does the work of glake_empty_cache(). Takes the locks. Throws Error.
  void empty_cache();
  // Makes room for `bytes` of another allocator's memory, and counts them against the limit. If
  // negative, it reduces that count. Takes the locks. Throws Error.
  void claim_outside(int64_t bytes);

  // Gives back up to `want` of idle memory, if need be after waiting for work that is marked. Takes
  // the locks. Returns how much the driver took. Throws Error where the driver refuses the context.
  Granules give_some(Granules want);

  // Gives back everything idle. If it may wait, it first waits for all the device's work. Throws
  // Error if the wait is refused.
  void give_back(HotGuard& hot);
  // The same as far as possible, without an error.
  void give_back_idle(HotGuard& hot);
  // Throws Error if the driver has refused to take memory back. The caller wanted that memory to be
  // free, so it must know that its next request may fail.
  void require_all_given();
  // Idle granules that the driver refused to unmap. A granule that is in two views may be counted
  // twice, so the result is at most the number of idle granules.
  Granules kept_mapped();

 private:
  // Gives back up to `want` that no work uses. `work`: if it is less, the last marks of the work
  // under way.
  Granules give_now(Granules want, std::vector<EventId>* work);
  // Trims the device's own heap and the pools that nobody uses.
  void trim_heaps(bool synced, HotGuard& hot);

  Device& device_;
};

}  // namespace glake
