// Driver undo that was itself refused and is tried again later, so that no handle, mapping or
// reservation is ever lost.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <vector>

#include "base/types.h"
#include "driver/driver.h"
#include "memory/refusals.h"

namespace glake {

// What is still owed to the driver after a refused undo: [at, at + bytes) is to be unmapped, and
// then the handles are to be released. `settled` runs when all is done.
struct DeferredRelease {
  Address at = 0;
  Bytes bytes = 0;
  std::vector<Handle> handles;
  std::function<void()> settled;
  // Another way to settle it: takes what is still mapped into use again, and returns how many
  // granules that is. Their handles are the first ones. Null: it cannot be used again.
  std::function<Granules()> keep;
};

class DeferredReleases {
 public:
  DeferredReleases(Driver& driver, Refusals& refusals) : driver_(driver), refusals_(refusals) {}
  // Does it now if the driver lets us, else keeps it for later. True if done.
  bool defer(DeferredRelease deferred);
  // Tries every one again. True if none is left.
  bool settle();
  // Takes back into use what is mapped still and cannot be unmapped.
  void keep_mapped();
  // A handle that is owed and mapped nowhere, to be used again; false if there is none.
  bool take(Handle* handle);
  bool empty() const { return deferred_.empty(); }
  // Granules of physical memory still held by deferred releases; any thread may ask.
  uint64_t handles() const { return handles_.load(); }
  // How many of those take() would give.
  uint64_t idle() const { return idle_.load(); }

 private:
  bool attempt(DeferredRelease& deferred);
  Driver& driver_;
  Refusals& refusals_;
  std::list<DeferredRelease> deferred_;
  std::atomic<uint64_t> handles_{0}, idle_{0};
};

}  // namespace glake
