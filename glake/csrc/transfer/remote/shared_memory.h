// Host memory that two processes map. It is a sealed file without a name, so that neither process
// can shorten it under the other's copies.
#pragma once

#include <string>

#include "base/types.h"
#include "driver/driver.h"
#include "transfer/remote/wire.h"

namespace glake::transfer {

// One process's mapping of it, which its driver pins.
class SharedMemory {
 public:
  // Makes new memory of whole pages. Throws Error.
  SharedMemory(Driver& driver, int device, Bytes bytes);
  // Maps memory of another process, which says that it has `bytes`. Throws Error.
  SharedMemory(Driver& driver, int device, Bytes bytes, Descriptor descriptor);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();  // none of its copies may be under way

  void unpin();  // no copy may use it any more; the memory stays

  Address at() const { return reinterpret_cast<Address>(base_); }
  Bytes bytes() const { return bytes_; }
  int descriptor() const { return file_.get(); }
  // Whether it holds all of these bytes.
  bool holds(Address address, Bytes bytes) const {
    return address >= at() && address - at() < bytes_ && bytes <= bytes_ - (address - at());
  }
  bool holds_part(Bytes from, Bytes bytes) const {
    return from <= bytes_ && bytes <= bytes_ - from;
  }

 private:
  void map();

  Driver& driver_;
  const int device_;  // its context pins the memory
  Bytes bytes_;
  Descriptor file_;
  void* base_ = nullptr;
  bool pinned_ = false;
};

}  // namespace glake::transfer
