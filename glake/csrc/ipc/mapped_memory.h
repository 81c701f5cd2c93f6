// Memory that this process has in common with others: a range of addresses, what is mapped there,
// and the driver's handle where it is kept. It is given back step by step. A refused step is tried
// again later, so that nothing is lost.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "heap/device_allocator.h"

namespace glake {

struct MappedMemory {
  explicit MappedMemory(DeviceAllocator& device) : on(device) {}
  virtual ~MappedMemory() = default;
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  // The addresses that are still reserved for closed memory, in bytes; 0 while it also holds
  // memory.
  Bytes kept_addresses() const { return held == 0 && base != 0 ? reserved : 0; }
  // Whether this process can still reach the memory.
  bool reachable() const { return mapped != 0 || (legacy && base != 0); }
  // Lets these devices reach what is mapped. Does nothing if they do already.
  Status grant(Driver& driver, const std::vector<int>& devices);
  // Waits for the work that may use the memory. Throws Error(GLAKE_INVALID_ARGUMENT) while a stream
  // is being captured, because the wait would break the capture.
  Status wait_for_work(Driver& driver) const;
  // Undoes the mapping step by step. If the driver refuses a step, the next call begins with that
  // step. A DeviceScope must be open.
  Status take_apart(Driver& driver);
  // Called when this process can no longer reach the memory.
  virtual void unmapped() {}

  DeviceAllocator& on;
  bool legacy = false;
  Address base = 0;    // reserved, or opened by the driver; 0: neither
  Bytes reserved = 0;  // of VMM memory
  Bytes mapped = 0;    // from `base` on
  Handle handle = 0;   // not yet released
  Bytes handle_bytes = 0;
  Bytes held = 0;  // physical memory, mapped or as a handle
  bool read_only = false;
  std::vector<int> granted;  // the devices that reach it
};

// Throws Error if the driver refused to grant access to the memory.
void require_granted(Driver& driver, const MappedMemory& memory, const Status& s);

// What the driver refused to take back. It counts as glake.owed_bytes of its device. The caller
// guards it by a lock.
class OwedMemory {
 public:
  explicit OwedMemory(Driver& driver) : driver_(driver) {}
  // Gives memory back whose opening failed, in a DeviceScope. Returns a text to add to the error;
  // "" if the driver took everything.
  std::string give_up(std::unique_ptr<MappedMemory> memory);
  // Keeps memory that the driver refused to take back in full. Returns a text about it.
  std::string owe(std::unique_ptr<MappedMemory> memory, const Status& refusal);
  // Tries again. What the driver refuses again stays owed.
  void settle();
  bool empty() const { return owed_.empty(); }

 private:
  Driver& driver_;
  std::vector<std::unique_ptr<MappedMemory>> owed_;
};

}  // namespace glake
