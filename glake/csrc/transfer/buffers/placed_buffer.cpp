#include "transfer/buffers/placed_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "driver/device_scope.h"
#include "driver/driver.h"

namespace glake::transfer {

PlacedBuffer::PlacedBuffer(Driver& driver, int device, const topology::Topology* topology,
                           int socket, Bytes bytes)
    : driver_(driver), device_(device), bytes_(bytes) {
  base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED) {
    throw Error(GLAKE_OUT_OF_MEMORY,
                "host memory of one socket: " + std::string(std::strerror(errno)));
  }
  try {
    place(topology, socket);
    DeviceScope scope(driver_, device_);
    expect_ok(scope.status(), "a context");
    expect_ok(driver_.register_host(base_, bytes_), "pinning it");
    pinned_ = true;
  } catch (const Error&) {
    munmap(base_, bytes_);
    throw;
  }
}

PlacedBuffer::~PlacedBuffer() {
  if (!pinned_) munmap(base_, bytes_);
}

void PlacedBuffer::unpin() {
  if (!pinned_) return;
  DeviceScope scope(driver_, device_);
  expect_ok(scope.status(), "a context");
  expect_ok(driver_.unregister_host(base_), "unpinning it");
  pinned_ = false;
}

void PlacedBuffer::place(const topology::Topology* topology, int socket) {
  if (topology == nullptr) return;
  const Status placed = driver_.place_host(base_, bytes_, topology->nodes_of(socket));
  int found = kUnknownNode;
  driver_.host_node(base_, bytes_, &found, topology->node_sockets());
  if (found == socket || topology->sockets() == 1) return;
  if (placed.ok() && found == kUnknownNode) return;  // the system does not tell
  throw Error(GLAKE_COPY_REFUSED,
              "the system gave no host memory on socket " + std::to_string(socket) +
                  ": the system does not let this process choose the NUMA node of its memory (a "
                  "container: allow it mbind, that is the capability SYS_NICE, and all cores)");
}

void PlacedBuffer::expect_ok(Status s, const char* what) const {
  if (s.ok()) return;
  throw Error(s.out_of_memory() ? GLAKE_OUT_OF_MEMORY : GLAKE_DRIVER_ERROR,
              "host memory of one socket: " + std::string(what) + ": " + driver_.describe(s));
}

}  // namespace glake::transfer
