// GPUs of the node that this process does not see, as relays. The relay service copies a chunk
// between host memory and a buffer on such a GPU. This process's GPU copies the chunk between the
// buffer and its own memory. In plans these GPUs have numbers after those of the process's own.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "transfer/remote/remote_link.h"

namespace glake::transfer {

// A copy of one hop that the service makes.
struct RemoteFlight {
  std::shared_ptr<RemoteLink> link;
  RemoteCopy copy;
  explicit operator bool() const { return link != nullptr; }
};

class RemoteGpus {
 public:
  // `local` is the number of GPUs that the process sees.
  RemoteGpus(Driver& driver, int local) : driver_(driver), local_(local) {}
  RemoteGpus(const RemoteGpus&) = delete;
  RemoteGpus& operator=(const RemoteGpus&) = delete;

  bool remote(int gpu) const { return gpu >= local_; }
  // Whether the path passes a GPU that this process does not see.
  bool on_way(const Path& path) const;
  // Whether the service makes this hop's copy.
  bool carries(const Hop& hop) const;
  // The GPU of this process that makes the hop's copy, if the service does not.
  int worker_of(const Hop& hop) const;
  uint32_t opened() const { return opened_.load(); }  // one bit for each

  struct Relay {
    int here, there;  // its number in the topology, and at the service
    bool near;        // this process's GPU reaches its memory
  };
  // Connects to the service and gets buffers on these GPUs. `device` is one of the process's GPUs,
  // whose context must be open. Throws Error. Relays that were opened before stay.
  void open(const std::string& path, int device, const std::vector<Relay>& relays);

  Address lend(int gpu, Bytes bytes);  // throws Error where there is no room
  bool room(const Path& path, Bytes bytes);
  void give_back(Address at, Bytes bytes) noexcept;

  // Pinned host memory that the service reaches too. Throws Error.
  Address allocate_host(Bytes bytes, int device);
  void free_host(Address at);  // none of its copies may be under way; throws Error
  // Frees memory whose engine has ended. False: there is no such memory.
  static bool free_left(Address at);
  bool reaches(Address at, Bytes bytes);
  // Lends a piece of memory that the service reaches, for a chunk of host memory that it does not
  // reach. The piece is kept until close().
  Address lend_stage(Bytes bytes, int device);
  void give_stage(Address at, Bytes bytes) noexcept;

  // Begins the copy of a hop between two buffers, or between a buffer and host memory. Throws
  // Error.
  RemoteFlight begin(const Hop& hop, Address to, Address from, Bytes bytes);
  // A failed copy returns kFailed once, with the reason.
  static RemoteCopy::State state(const RemoteFlight& flight, std::string* why) {
    return flight.link->state(flight.copy, why);
  }
  void close();

 private:
  struct Shared {
    std::unique_ptr<SharedMemory> memory;
    uint64_t id = 0;
    std::weak_ptr<RemoteLink> known_to;
  };
  using LinkPtr = std::shared_ptr<RemoteLink>;

  LinkPtr link();
  LinkPtr link_or_throw();
  // The service's name for host memory. If the service does not know the memory yet, it is told.
  std::pair<uint64_t, Bytes> shared_at(const LinkPtr& link, Address at, Bytes bytes);

  Driver& driver_;
  const int local_;
  std::atomic<uint32_t> opened_{0};
  std::mutex mutex_;  // guards what follows
  LinkPtr link_;
  std::vector<LinkPtr> old_;  // links whose buffers are still lent
  std::map<Address, Shared> shared_;
  uint64_t last_id_ = 0;
  std::map<Bytes, std::vector<Address>> stages_;  // spare pieces, by size
};

}  // namespace glake::transfer
