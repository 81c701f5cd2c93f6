// Host memory that two processes map: a file without a name, sealed, so that neither can make it
// shorter under the other's copies.
#pragma once

#include <string>

#include "base/types.h"
#include "driver/driver.h"
#include "transfer/remote/wire.h"

namespace glake::transfer {

// One process's mapping of it, pinned for its driver.
class SharedMemory {
 public:
  // Fresh memory, of whole pages. Throws Error.
  SharedMemory(Driver& driver, int device, Bytes bytes);
  // Another process's; `bytes` are what it says. Throws Error.
  SharedMemory(Driver& driver, int device, Bytes bytes, Descriptor descriptor);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();  // no copy of it is under way

  void unpin();  // nobody copies it any more; the memory stays

  Address at() const { return reinterpret_cast<Address>(base_); }
  Bytes bytes() const { return bytes_; }
  int descriptor() const { return file_.get(); }
  // Where bytes of this process's are in it.
  bool holds(Address address, Bytes bytes) const {
    return address >= at() && address - at() < bytes_ && bytes <= bytes_ - (address - at());
  }
  bool holds_part(Bytes from, Bytes bytes) const {
    return from <= bytes_ && bytes <= bytes_ - from;
  }

 private:
  void map();

  Driver& driver_;
  const int device_;  // whose context pins it
  Bytes bytes_;
  Descriptor file_;
  void* base_ = nullptr;
  bool pinned_ = false;
};

}  // namespace glake::transfer
