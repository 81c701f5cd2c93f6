// Shares device memory between processes of one user: blocks of this process for others, and blocks
// of others that are mapped here. docs/interop.md says what works with what.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ipc/ipc_client.h"
#include "ipc/ipc_server.h"
#include "ipc/mapped_memory.h"
#include "ipc/shards.h"

namespace glake {

class Ipc {
 public:
  explicit Ipc(Driver& driver) : driver_(driver), server_(driver), owed_(driver) {}
  Ipc(const Ipc&) = delete;
  Ipc& operator=(const Ipc&) = delete;

  // The text by which other processes open a live block. Throws Error.
  std::string share(Block& block, const CallerBlock& called);
  // Maps another process's block on the device; the same text again gives the same address. Another
  // process that does not answer holds up only those who open the same text. Throws Error:
  // GLAKE_INVALID_ARGUMENT (no such handle, or this process's own), GLAKE_INVALID_POINTER (the
  // block or its process is gone), GLAKE_INVALID_DEVICE, GLAKE_DRIVER_ERROR.
  Address open(const std::string& text, DeviceAllocator& device, Bytes* bytes);
  void close(Address ptr);
  // Makes everything of the device that is mapped now or later accessible from `peer`, also what
  // other processes share. Throws Error.
  void enable_peer(DeviceAllocator& device, int peer);
  // Tries again to give back what the driver refused to take. What it refuses again stays owed.
  void settle();
  // Memory that processes have in common and that none can write.
  Shards& shards() { return shards_; }
  // Ends the server, which unpins the shared blocks. Throws Error while blocks of other processes
  // are open.
  void close();

 private:
  struct Import : MappedMemory {
    using MappedMemory::MappedMemory;
    void unmapped() override { client.reset(); }

    std::string text;
    uint64_t count = 1;
    std::optional<IpcClient> client;  // when it ends, the block is unpinned in its own process
    Bytes offset = 0;                 // of the block, from `base`
    Bytes bytes = 0;
  };

  std::unique_ptr<Import> import(const std::string& text, const IpcHandle& handle,
                                 DeviceAllocator& device);
  void end_asking(const std::string& text);
  // Gives everything back after import() has failed. Returns a text to add to the error.
  std::string give_up(std::unique_ptr<Import> import);
  void connect(Import& import, const IpcHandle& handle, const IpcRequest& request, IpcReply* reply);
  Status map_all(Import& import, IpcRequest request, const IpcReply& reply,
                 const std::vector<int>& grants);

  Driver& driver_;
  IpcServer server_;
  // Guards what follows. Held while a block is closed, but not while another process is asked.
  std::mutex mutex_;
  std::unordered_set<std::string> asking_;  // the texts that are being opened
  std::condition_variable asked_;           // one of them is open, or refused
  std::map<Address, std::unique_ptr<Import>> imports_;
  std::unordered_map<std::string, Address> opened_;  // by text
  OwedMemory owed_;
  Shards shards_{driver_, server_};
};

}  // namespace glake
