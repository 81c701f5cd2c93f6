// A process's connection to the relay service, and the buffers that the service has given it. They
// are on GPUs that the process does not see, and mapped for its own GPUs.
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

// A copy that was ordered from the service.
struct RemoteCopy {
  uint32_t order_id = 0;
  enum class State { kUnderWay, kDone, kFailed };
};

class RemoteLink {
 public:
  // `device` is a GPU of the process, whose context must be open. Throws Error.
  RemoteLink(Driver& driver, int device, const std::string& path);
  RemoteLink(const RemoteLink&) = delete;
  RemoteLink& operator=(const RemoteLink&) = delete;
  ~RemoteLink();  // every lent piece must have been given back

  // Gets a buffer on the GPU that has the number `there` at the service. `near`: a GPU of this
  // process reaches it. If not, the buffer is for a relay before the last, and this process can
  // name its bytes, but not access them. Throws Error.
  void open(int gpu, int there, bool near);
  bool has(int gpu);
  bool alive();
  bool idle();  // nothing is lent

  // Lends a piece of the GPU's buffer; 0 if there is no room now.
  Address lend(int gpu, Bytes bytes);
  bool room(int gpu, Bytes bytes);
  bool give_back(Address at, Bytes bytes);  // false: not of this connection

  // share() tells the service of host memory. forget() tells it that the memory is no longer
  // shared.
  void share(uint64_t id, const SharedMemory& memory);
  void forget(uint64_t id);

  // Begins a copy; throws Error if the service is gone.
  RemoteCopy in(int gpu, Address buffer, uint64_t shared, Bytes at, Bytes bytes);
  RemoteCopy out(int gpu, Address buffer, uint64_t shared, Bytes at, Bytes bytes);
  RemoteCopy across(int gpu, Address from, int peer, Address to, Bytes bytes);
  // The state of a copy. Once it has said that the copy is over, the link forgets the copy.
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
  struct Awaited {
    bool over = false;
    std::string why;  // empty unless it failed
    Bytes bytes = 0;
    Descriptor descriptor;
  };
  using Lock = std::unique_lock<std::mutex>;

  uint32_t send(Order order, int descriptor = -1);
  Awaited await(uint32_t order_id);
  // Called under the lock. It takes the answers that have come, and notes which copies have ended.
  void pump();
  void take_answers();
  bool find_room(const Buffer& buffer, Bytes bytes, Bytes* at) const;
  Order copy_order(uint32_t kind, int gpu, Address buffer, Bytes bytes);
  void map(Buffer* buffer, int fd, bool near);
  void unmap(Buffer* buffer);

  Driver& driver_;
  const int device_;
  // `process_` is the service's process. It is empty if this kernel does not tell.
  Descriptor socket_, process_;
  std::mutex mutex_;      // guards all that follows
  std::string broken_;    // the reason why it takes no more orders
  bool hung_up_ = false;  // the service does not answer any more
  bool let_go_ = false;   // hung_up_, and none of its copies is under way
  uint32_t last_ = 0;
  std::map<uint32_t, Awaited> awaited_;
  std::map<int, Buffer> buffers_;
};

}  // namespace glake::transfer
