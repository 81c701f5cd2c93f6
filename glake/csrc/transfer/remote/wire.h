// The messages between a process and the relay service about copies. They are packets of one size
// over a socket that keeps packets apart (SOCK_SEQPACKET), with descriptors of memory. Each end
// checks the other's user when it connects. It still checks every field.
#pragma once

#include <cstdint>
#include <string>

#include "base/transfer_tuning.h"
#include "base/types.h"

namespace glake::transfer {

constexpr uint64_t kWireVersion = 1;

struct Order {
  enum Kind : uint32_t {
    kHello,   // the first packet; `at` is the version
    kOpen,    // a buffer on `gpu`: its descriptor comes with the answer
    kShare,   // host memory `memory` of `bytes`: its descriptor comes with the order
    kForget,  // host memory `memory`: no copy of it is under way
    kIn,      // `bytes` from host memory `memory` at `at` to the buffer on `gpu` at `to`
    kOut,     // the reverse
    kAcross,  // from the buffer on `gpu` at `at` to the one on `peer` at `to`
  };
  uint32_t kind = kHello;
  uint32_t order_id = 0;  // the answer has the same one
  int32_t gpu = 0, peer = 0;
  uint64_t memory = 0, at = 0, to = 0, bytes = 0;
};

struct Answer {
  uint32_t order_id = 0;
  int32_t failed = 0;  // 0: the order is done
  uint64_t bytes = 0;  // the size of a buffer
  char why[112] = {};  // the reason of a failure
};

// An owned file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }
  int get() const { return fd_; }
  int release();
  void reset();
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Sends one packet of `bytes`, with a descriptor unless it is -1. False: the other end is gone, or
// does not read for too long. The packet is not changed; it is not const because sendmsg() takes no
// pointer to const.
bool send_packet(int socket, void* packet, size_t bytes, int descriptor = -1);
// Receives one packet of exactly `bytes`. kNone: there is none now. `wait`: it waits for one.
enum class Got { kPacket, kNone, kGone };
Got take_packet(int socket, void* packet, size_t bytes, Descriptor* descriptor, bool wait);

// A socket that listens at `path`, for this user alone. Throws Error.
Descriptor listen_at(const std::string& path);
// A connection to such a socket. The other end must be this user's. Throws Error.
Descriptor connect_to(const std::string& path);
// Whether the other end is this user's process.
bool same_user(int socket);
// The process that opened the listening socket; empty if that cannot be known.
Descriptor process_behind(int socket);
bool has_ended(int process);

}  // namespace glake::transfer
