// Reserved virtual addresses of one device, and the debts: driver undo that was itself refused and
// is tried again later, so that no handle, mapping or reservation is ever lost.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "core/pointer_map.h"
#include "driver/driver.h"
#include "types.h"

namespace glake {

// What is still owed to the driver after a refused undo: unmap [at, at + bytes), then release the
// handles; `settled` runs when all is done.
struct Debt {
  Address at = 0;
  Bytes bytes = 0;
  std::vector<Handle> handles;
  std::function<void()> settled;
};

class DebtBook {
 public:
  explicit DebtBook(Driver& driver) : driver_(driver) {}
  // Pays the debt now if the driver lets us, else keeps it. True if paid.
  bool owe(Debt debt);
  // Tries every debt again. True if none is left.
  bool settle();
  bool empty() const { return debts_.empty(); }
  // Granules of physical memory still held by debts; any thread may ask.
  uint64_t handles() const { return handles_.load(); }

 private:
  bool pay(Debt& debt);
  Driver& driver_;
  std::list<Debt> debts_;
  std::atomic<uint64_t> handles_{0};
};

// A reservation, aligned to 1 GiB inside what the driver gave, entered in the pointer map.
class Reservation {
 public:
  // Throws Error when the driver refuses.
  Reservation(Driver& driver, DeviceAllocator* device, Bytes bytes, Bytes slot);
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

// Addresses for views: first fit over the device's view reservations, in granules.
class ViewSpace {
 public:
  ViewSpace(Driver& driver, DeviceAllocator* device, Bytes chunk)
      : driver_(driver), device_(device), chunk_(round_up(chunk, kRegionAlign)) {}
  // Throws Error when a new reservation is needed and refused.
  Address take(Granules n);
  void give(Address base, Granules n);
  Region& region_of(Address a) { return *PointerMap::find(a); }
  Status release();  // every reservation; the first refusal stops it

 private:
  Driver& driver_;
  DeviceAllocator* device_;
  Bytes chunk_;
  std::vector<std::unique_ptr<Reservation>> reservations_;
  std::map<Address, Granules> free_;
};

}  // namespace glake
