// Reads back from one device what the debug modes check. Guards and filled memory are copied in
// stream order, and compared on the host once the copies have arrived. It is not thread-safe. The
// caller holds the device's debug lock and has a DeviceScope open.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <vector>

#include "debug/findings.h"
#include "debug/readback.h"
#include "driver/driver.h"

namespace glake {

class PendingChecks {
 public:
  // A stretch of memory on its way to the host.
  struct Copy {
    Readback::Slab* slab;
    const char* bytes;
    Bytes size;
    Address from;
    uint8_t expected;
    Damage kind;
    int64_t offset;
    HoldingPtr block;  // null: the copy is not compared any more
  };
  struct Batch {
    EventId event = 0;  // 0: not recorded, so it is read after a synchronisation
    std::vector<Copy> copies;
    bool repairs = false;  // damage that is found is repaired, so that it is not found again
  };

  // `guard_byte` is the content of guards. `sync`: every batch is waited for.
  PendingChecks(Driver& driver, int number, uint8_t guard_byte, bool sync)
      : driver_(driver), number_(number), guard_byte_(guard_byte), sync_(sync), readback_(driver) {}

  // Enqueues copies of `what` behind the stream's work, and fills in its slab and its place on the
  // host. If all slabs are in use, it waits for the oldest copies.
  bool copy(Batch& batch, StreamHandle stream, Copy what);
  // The same for a block's guards.
  bool copy_guards(Batch& batch, const HoldingPtr& h, StreamHandle stream);
  // Marks the end of a batch; with `sync`, waits for it.
  void finish(Batch batch, StreamHandle stream);
  // Compares every batch that is known to have run.
  void collect();
  // Compares all batches, after a synchronisation of the device.
  void read_all();
  // From now on the batches with `repairs` under way are not compared when they arrive.
  void disregard_repairs();
  // The first refusal stops it, and the caller may try again.
  Status close();

  // How many checks were enqueued, and how many could not be. Any thread may ask.
  uint64_t checks() const { return checks_.load(); }
  uint64_t skipped() const { return skipped_.load(); }
  void count_skipped() { skipped_.fetch_add(1); }

 private:
  bool wait_for_oldest();
  void read(Batch& batch);
  void read_first(std::deque<Batch>& batches, size_t n);

  Driver& driver_;
  const int number_;
  const uint8_t guard_byte_;
  const bool sync_;
  Readback readback_;
  std::vector<EventId> spare_events_;
  std::map<StreamHandle, std::deque<Batch>> pending_;
  std::atomic<uint64_t> checks_{0}, skipped_{0};
};

}  // namespace glake
