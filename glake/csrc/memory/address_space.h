// Reserved virtual addresses of one device, and deferred releases: driver undo that was itself
// refused and is tried again later, so that no handle, mapping or reservation is ever lost.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/types.h"
#include "driver/driver.h"
#include "memory/pointer_map.h"

namespace glake {

// What the driver said when it last refused to take something back. Under the device's slow lock.
class Refusals {
 public:
  explicit Refusals(Driver& driver) : driver_(driver) {}
  Status note(const char* call, Status s) {
    if (!s.ok()) text_ = std::string(call) + ": " + driver_.describe(s);
    return s;
  }
  void note(const std::string& text) { text_ = text; }
  const std::string& text() const { return text_; }

  Granules kept{0};  // that stayed mapped, as counted since somebody set it to zero

 private:
  Driver& driver_;
  std::string text_;
};

// What is still owed to the driver after a refused undo: unmap [at, at + bytes), then release the
// handles; `settled` runs when all is done.
struct DeferredRelease {
  Address at = 0;
  Bytes bytes = 0;
  std::vector<Handle> handles;
  std::function<void()> settled;
  // Instead of both: takes what is mapped into use again, with the first handles, and returns how
  // many. Null: it cannot be.
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

// A reservation, aligned to 1 GiB inside what the driver gave, entered in the pointer map.
class Reservation {
 public:
  // Throws Error when the driver refuses.
  Reservation(Driver& driver, Heap* heap, Bytes bytes, Bytes slot);
  ~Reservation();  // leaves the addresses reserved unless release() has run
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  Address base() const { return region_->base(); }
  Bytes size() const { return region_->size(); }
  Region& region() { return *region_; }
  Status release();

 private:
  Driver& driver_;
  Address reserved_ = 0;
  Bytes reserved_bytes_ = 0;
  std::unique_ptr<Region> region_;
};

// Addresses for views: best fit over the device's view reservations, in granules.
class ViewSpace {
 public:
  ViewSpace(Driver& driver, Heap* heap, Bytes chunk)
      : driver_(driver), heap_(heap), chunk_(round_up(chunk, kRegionAlign)) {}
  // Throws Error when a new reservation is needed and refused.
  Address take(Granules n);
  void give(Address base, Granules n);
  Region& region_of(Address a) { return *PointerMap::find(a); }
  Status release();  // every reservation; the first refusal stops it

 private:
  Driver& driver_;
  Heap* heap_;
  Bytes chunk_;
  using Places = std::map<Address, Granules>;
  void enter(Address base, Granules n);
  Places::iterator leave(Places::iterator place);
  std::vector<std::unique_ptr<Reservation>> reservations_;
  Places free_;
  std::set<std::pair<uint64_t, Address>> by_size_;  // the same, by granules and address
};

}  // namespace glake
