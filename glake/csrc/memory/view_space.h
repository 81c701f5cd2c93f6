// Gives out addresses for views, in granules. It takes the best fit in the heap's reservations for
// views.
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
#include "memory/block_table.h"
#include "memory/deferred_releases.h"
#include "memory/pointer_map.h"
#include "memory/refusals.h"
#include "memory/reservation.h"

namespace glake {

class ViewSpace {
 public:
  ViewSpace(Driver& driver, Heap* heap, Bytes least)
      : driver_(driver), heap_(heap), least_(round_up(least, kRangeAlign)) {}
  // Throws Error when a new reservation is needed and refused.
  Address take(Granules n);
  void give(Address base, Granules n);
  BlockTable& table_of(Address a) { return *PointerMap::find(a); }
  Status release();  // of all reservations; the first refusal stops it

 private:
  using Places = std::map<Address, Granules>;
  void enter(Address base, Granules n);
  Places::iterator leave(Places::iterator place);

  Driver& driver_;
  Heap* heap_;
  Bytes least_;  // of a reservation
  std::vector<std::unique_ptr<Reservation>> reservations_;
  Places free_;
  std::set<std::pair<uint64_t, Address>> by_size_;  // the same places, by granules and address
};

}  // namespace glake
