// Pinned host memory on one socket. The socket of a copy's host end decides which links the copy
// loads.
#pragma once

#include "base/types.h"
#include "driver/driver.h"
#include "plan/topology.h"

namespace glake::transfer {

class PlacedBuffer {
 public:
  // The context of `device` pins it. Without a topology it may be on any socket. Throws Error:
  // GLAKE_COPY_REFUSED if the system does not put memory on that socket, GLAKE_OUT_OF_MEMORY,
  // GLAKE_DRIVER_ERROR.
  PlacedBuffer(Driver& driver, int device, const topology::Topology* topology, int socket,
               Bytes bytes);
  PlacedBuffer(const PlacedBuffer&) = delete;
  PlacedBuffer& operator=(const PlacedBuffer&) = delete;
  ~PlacedBuffer();  // memory that is still pinned stays, because the driver may use it

  void unpin();  // nothing may use it any more; throws Error
  Address at() const { return reinterpret_cast<Address>(base_); }

 private:
  void place(const topology::Topology* topology, int socket);
  void expect_ok(Status s, const char* what) const;

  Driver& driver_;
  int device_;
  Bytes bytes_;
  void* base_ = nullptr;
  bool pinned_ = false;
};

}  // namespace glake::transfer
