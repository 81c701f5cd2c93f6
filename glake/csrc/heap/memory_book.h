// Counts how much of a device's memory is held, for what, and how much more the limit allows.
//
// Callers hold the device's hot lock, except where a comment says otherwise.
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
  // `fraction` is the limit as a part of all the memory. fraction() returns what was set at run
  // time, or else what the limit amounts to.
  void set_limit(Granules limit, double fraction);
  double fraction() const;

  // Granules behind all heaps, as their pools count them.
  std::atomic<uint64_t>& backed() { return backed_; }
  // Granules held from the driver: behind heaps, in contiguous blocks, and owed.
  Granules physical() const;
  // By how much the arenas may grow under the limit. Growth uses owed memory first, which is held
  // already.
  Granules room() const;
  // How much is held above a limit that was lowered.
  Granules above_limit() const;
  // True if at most half of the limit is held.
  bool half_free() const;
  // room() and above_limit() for contiguous blocks, which use no owed memory.
  Granules allocation_room() const;
  Granules allocations_above_limit() const;

  // The part of the limit that other allocators' memory takes (glake_claim_outside).
  Bytes outside() const { return outside_; }
  bool may_claim(Bytes more) const;
  void claim(Bytes more) { outside_ += more; }
  void end_claim(Bytes bytes);
  Bytes claimable() const;

  // Granules that the driver refused to take back. They are held, but are in no segment. Only the
  // statistic glake.owed_bytes counts them. Takes no lock.
  Granules owed() const { return Granules{deferred_.handles()} + contiguous_.owed(); }
  // The same in bytes, with what is owed of other processes' blocks. glake cannot use that part
  // again.
  Bytes owed_bytes() const { return owed().bytes() + imported_; }
  // Addresses that the driver refused to take back.
  Bytes owed_addresses() const { return contiguous_.owed_addresses() + imported_addresses_; }
  // What is owed of other processes' blocks. These methods take no lock.
  Bytes imported() const { return imported_; }
  void owe_imported(Bytes memory, Bytes addresses);
  void pay_imported(Bytes memory, Bytes addresses);

  // headroom() is the driver's memory that stays free for others. kept_of() is the part of the
  // driver's free memory that now stays free for that.
  Bytes headroom() const { return driver_.headroom(device_); }
  Granules kept_of(Bytes driver_free) const;
  // What the driver reports free beyond the headroom, plus what it is owed. 0 if it reports
  // nothing.
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
