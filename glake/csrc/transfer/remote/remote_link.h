// A process's connection to the relay service, and what the service has given it: buffers on GPUs
// that the process does not see, mapped for its own.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "transfer/remote/shared_memory.h"
#include "transfer/remote/wire.h"

namespace glake::transfer {

// A copy the service has been asked for.
struct RemoteCopy {
  uint32_t ticket = 0;
  enum class State { kUnderWay, kDone, kFailed };
};

class RemoteLink {
 public:
  // `device`: the process's GPU, whose context is open. Throws Error.
  RemoteLink(Driver& driver, int device, const std::string& path);
  RemoteLink(const RemoteLink&) = delete;
  RemoteLink& operator=(const RemoteLink&) = delete;
  ~RemoteLink();  // nothing is lent any more

  // A buffer on the GPU that the service numbers `there`. `near`: ours reaches it; else it is for
  // the first of two relays, and this process has names for its bytes alone. Throws Error.
  void open(int gpu, int there, bool near);
  bool has(int gpu);
  bool alive();
  bool idle();  // nothing is lent

  // A piece of the GPU's buffer, 0 if there is no room now.
  Address lend(int gpu, Bytes bytes);
  bool room(int gpu, Bytes bytes);
  bool give_back(Address at, Bytes bytes);  // false: not of this connection

  // Host memory as the service knows it from now on, and no more.
  void share(uint64_t id, const SharedMemory& memory);
  void forget(uint64_t id);

  // Begins a copy; throws Error if the service is gone.
  RemoteCopy in(int gpu, Address buffer, uint64_t shared, Bytes at, Bytes bytes);
  RemoteCopy out(int gpu, Address buffer, uint64_t shared, Bytes at, Bytes bytes);
  RemoteCopy across(int gpu, Address from, int peer, Address to, Bytes bytes);
  // How it is; once told that it is over, it is forgotten.
  RemoteCopy::State state(RemoteCopy copy, std::string* why);

 private:
  struct Buffer {
    int there = 0;
    Handle handle = 0;
    Address at = 0;
    Bytes bytes = 0;
    bool mapped = false;
    std::set<std::pair<Bytes, Bytes>> lent;  // from, until
  };
  struct Ticket {
    bool over = false;
    std::string why;  // it failed
    Bytes bytes = 0;
    Descriptor descriptor;
  };
  using Lock = std::unique_lock<std::mutex>;

  uint32_t send(Order order, int descriptor = -1);
  Ticket await(uint32_t ticket);
  // Under the lock: takes what has come, and sees whether copies that were begun have ended.
  void pump();
  void take_answers();
  bool find_room(const Buffer& buffer, Bytes bytes, Bytes* at) const;
  Order copy_order(uint32_t kind, int gpu, Address buffer, Bytes bytes);
  void map(Buffer* buffer, int fd, bool near);
  void unmap(Buffer* buffer);

  Driver& driver_;
  const int device_;
  Descriptor socket_, process_;  // the service's process; empty: this kernel does not tell
  std::mutex mutex_;             // of all that follows
  std::string broken_;           // why it takes no orders any more
  bool hung_up_ = false;         // nor answers
  bool let_go_ = false;          // and none of its copies is under way
  uint32_t last_ = 0;
  std::map<uint32_t, Ticket> tickets_;
  std::map<int, Buffer> buffers_;
};

}  // namespace glake::transfer
