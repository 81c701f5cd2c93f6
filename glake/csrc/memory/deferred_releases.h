// Keeps operations that give something back and that the driver refused. They are tried again
// later, so that no handle, mapping or reservation is lost.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <vector>

#include "base/types.h"
#include "driver/driver.h"
#include "memory/refusals.h"

namespace glake {

// What glake still owes to the driver after a refusal. [at, at + bytes) must be unmapped, and then
// the handles must be released. `settled` runs when all of that is done.
struct DeferredRelease {
  Address at = 0;
  Bytes bytes = 0;
  std::vector<Handle> handles;
  std::function<void()> settled;
  // Another way to settle the debt: it takes what is still mapped into use again, and returns the
  // number of granules taken. Their handles are the first ones of `handles`. Null: the granules
  // cannot be used again.
  std::function<Granules()> keep;
};

class DeferredReleases {
 public:
  DeferredReleases(Driver& driver, Refusals& refusals) : driver_(driver), refusals_(refusals) {}
  // Pays now if the driver permits, and otherwise keeps the debt for later. Returns true if it is
  // paid.
  bool defer(DeferredRelease deferred);
  // Tries all of them again. Returns true if none is left.
  bool settle();
  // Takes what is still mapped, and cannot be unmapped, into use again.
  void keep_mapped();
  // Takes over a handle that is owed and mapped nowhere, so that its memory is used again. False if
  // there is none.
  bool take(Handle* handle);
  bool empty() const { return deferred_.empty(); }
  // The granules of physical memory that deferred releases hold. Any thread may ask.
  uint64_t handles() const { return handles_.load(); }
  // The granules among them that take() would give.
  uint64_t idle() const { return idle_.load(); }

 private:
  bool attempt(DeferredRelease& deferred);
  Driver& driver_;
  Refusals& refusals_;
  std::list<DeferredRelease> deferred_;
  std::atomic<uint64_t> handles_{0}, idle_{0};
};

}  // namespace glake
