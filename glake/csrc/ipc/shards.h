// Shards: memory that processes of one user have in common, and that none of them can write. Equal
// weights of several processes lie in shards (docs/deduplication.md). A shard is one driver
// allocation. Its maker fills it and seals it. From then on every mapping of it is read-only, and
// each process that has it open can give it to others. So it lives as long as any of them.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "ipc/ipc_server.h"
#include "ipc/mapped_memory.h"

namespace glake {

class Shards {
 public:
  Shards(Driver& driver, IpcServer& server) : driver_(driver), server_(server), owed_(driver) {}
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;

  // A new shard of at least `bytes`, which only this process has and may write. Throws Error:
  // GLAKE_OUT_OF_MEMORY, GLAKE_INVALID_ARGUMENT (the driver cannot export memory),
  // GLAKE_DRIVER_ERROR.
  Address create(DeviceAllocator& device, Bytes bytes);
  // Makes the shard read-only, after the device's work. Throws Error. The shard stays writable
  // then.
  void seal(Address ptr);
  // The text by which other processes open a sealed shard. Throws Error.
  std::string share(Address ptr);
  // Maps another process's shard, read-only. The same text gives the same address. Throws Error as
  // Ipc::open() does.
  Address open(const std::string& text, DeviceAllocator& device, Bytes* bytes);
  // Closes a shard that was created or opened here, after the device's work. Other processes keep
  // it. Throws Error.
  void close(Address ptr);

  // Lets all devices that reach the device's memory reach its shards. Throws Error.
  void grant_peers(DeviceAllocator& device);

  void settle();  // tries again to give back what the driver refused to take
  // Throws Error while shards are open, or the driver refuses to take something back.
  void end();

 private:
  struct Shard : MappedMemory {
    using MappedMemory::MappedMemory;
    std::string text;  // by which it was opened; empty: this process made it
    uint64_t count = 1;
    Bytes bytes = 0;
    uint64_t offer = 0;  // its number at the server; 0: this process has not shared it
  };

  Shard& find(Address ptr);
  Status build(Shard& shard, int fd);
  Address keep(std::unique_ptr<Shard> shard, int fd, const std::string& what);
  Address again(const std::string& text);
  IpcFd ask(const IpcHandle& handle, std::unique_lock<std::mutex>& lock);

  Driver& driver_;
  IpcServer& server_;
  // Guards the shards. It is held while one is made, mapped or closed, but not while another
  // process is asked for one, because that may be stopped.
  std::mutex mutex_;
  std::condition_variable asked_;
  int asking_ = 0;  // threads that ask
  std::map<Address, std::unique_ptr<Shard>> shards_;
  std::unordered_map<std::string, Address> opened_;  // by text
  OwedMemory owed_;
};

}  // namespace glake
