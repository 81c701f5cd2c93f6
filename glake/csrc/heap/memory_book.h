// How much of a device's memory is held, for what, and how much more its limit leaves.
//
// Under the device's hot lock, except where it says otherwise.
#pragma once

#include <atomic>

#include "base/types.h"
#include "driver/driver.h"
#include "memory/contiguous_pool.h"
#include "memory/deferred_releases.h"

namespace glake {

class MemoryBook {
 public:
  MemoryBook(Driver& driver, int device, const DeferredReleases& deferred,
             const ContiguousPool& contiguous)
      : driver_(driver), device_(device), deferred_(deferred), contiguous_(contiguous) {}
  MemoryBook(const MemoryBook&) = delete;
  MemoryBook& operator=(const MemoryBook&) = delete;

  // The device has `total`, of which `limit` may be held.
  void begin(Bytes total, Granules limit);
  Bytes total() const { return total_; }
  Granules limit() const { return limit_; }
  // The limit as a part of all the memory: as it was set at run time, or as it comes to.
  void set_limit(Granules limit, double fraction);
  double fraction() const;

  // Granules behind all heaps, as their pools count them.
  std::atomic<uint64_t>& backed() { return backed_; }
  // Granules held from the driver: behind heaps, in contiguous blocks, and owed.
  Granules physical() const;
  // By how much the arenas may grow under the limit. What is owed to the driver is used first, and
  // held already.
  Granules room() const;
  // How much is held above a limit that was lowered.
  Granules above_limit() const;
  // The room is at least as large as what is held.
  bool half_free() const;
  // The same for contiguous blocks, which take nothing that is owed.
  Granules allocation_room() const;
  Granules allocations_above_limit() const;

  // The part of the limit that other allocators' memory takes (glake_claim_outside).
  Bytes outside() const { return outside_; }
  bool may_claim(Bytes more) const;
  void claim(Bytes more) { outside_ += more; }
  void end_claim(Bytes bytes);
  Bytes claimable() const;

  // What is held although it is in no segment: the driver refused to take it back. Of the
  // statistics, glake.owed_bytes alone counts it. Takes no lock.
  Granules owed() const { return Granules{deferred_.handles()} + contiguous_.owed(); }
  // The same with what is owed of other processes' blocks. Nothing here can use that again.
  Bytes owed_bytes() const { return owed().bytes() + imported_; }
  // Addresses that the driver refused to take back.
  Bytes owed_addresses() const { return contiguous_.owed_addresses() + imported_addresses_; }
  // Of other processes' blocks, what is owed. Take no lock.
  Bytes imported() const { return imported_; }
  void owe_imported(Bytes memory, Bytes addresses);
  void pay_imported(Bytes memory, Bytes addresses);

  // Memory of the driver's that stays free for others; and which part of what it has free now.
  Bytes headroom() const { return driver_.headroom(device_); }
  Granules kept_of(Bytes driver_free) const;
  // What the driver reports free without the headroom, and what it is owed. 0 if it does not say.
  Granules driver_has();

 private:
  Granules under_limit() const;

  Driver& driver_;
  const int device_;
  const DeferredReleases& deferred_;
  const ContiguousPool& contiguous_;
  Bytes total_ = 0;
  Granules limit_;
  double fraction_ = 0;  // as set at run time; 0: not
  Bytes outside_ = 0;
  std::atomic<uint64_t> backed_{0};
  std::atomic<Bytes> imported_{0}, imported_addresses_{0};
};

}  // namespace glake
