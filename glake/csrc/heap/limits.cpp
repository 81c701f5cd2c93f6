#include "heap/limits.h"

#include "heap/mapping_turn.h"
#include "heap/reclaim.h"
#include "heap/trim.h"
#include "memory/fair_mutex.h"

namespace glake {

void Limits::set_fraction(double fraction) {
  const bool fits = fraction > 0 && fraction <= 1;
  const Bytes limit =
      fits ? static_cast<Bytes>(fraction * static_cast<double>(device_.memory.total())) : 0;
  if (limit < kGranule) {
    throw Error(GLAKE_INVALID_ARGUMENT, "a limit of " + significant_text(fraction, 6) +
                                            " of the device's memory: it takes a fraction above 0 "
                                            "and up to 1, of at least one granule of 2 MiB");
  }
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  HotGuard hot(device_.hot);
  device_.memory.set_limit(Granules::floor(limit), fraction);
}

double Limits::fraction() {
  HotGuard hot(device_.hot);
  return device_.memory.fraction();
}

void Limits::check_headroom(Bytes bytes, int device, Bytes total) {
  if (bytes < total) return;
  throw Error(GLAKE_INVALID_ARGUMENT, "a headroom of " + size_text(bytes) + " on " +
                                          device_text(device) + ", which has " + size_text(total) +
                                          ": give less");
}

Bytes Limits::set_headroom(Bytes bytes) {
  check_headroom(bytes, device_.number, device_.memory.total());
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  device_.driver.set_headroom(device_.number, bytes);
  device_.shortage.forget({0});
  Bytes free = 0, total = 0;
  auto lacks = [&] {
    device_.require(device_.driver.memory_info(&free, &total), "its memory's state");
    return free < bytes ? Granules::ceil(bytes - free) : Granules{0};
  };
  Granules missing = lacks();
  for (Heap* heap : device_.heaps.started()) {
    if (missing.count == 0) return free;
    if (!heap->gives_back()) continue;
    Trim(*heap).shrink(missing, hot);
    device_.settle(hot);
    missing = lacks();
  }
  if (missing.count != 0) Reclaim(device_).give_back(hot);
  if (lacks().count != 0) Reclaim(device_).require_all_given();
  return free;
}

}  // namespace glake
