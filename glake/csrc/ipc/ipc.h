// Shares device memory between processes of one user: blocks of this process for others, and blocks
// of others that are mapped here. docs/interop.md says what works with what.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ipc/ipc_server.h"

namespace glake {

class Ipc {
 public:
  explicit Ipc(Driver& driver) : driver_(driver), server_(driver) {}
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
  // Tries again to give back what the driver refused to take. What it refuses again stays owed.
  void settle();
  // Ends the server, which unpins the shared blocks. Throws Error while blocks of other processes
  // are open.
  void close();

 private:
  struct Import {
    // The addresses that are still reserved for a closed block, in bytes; 0 while it also holds
    // memory.
    Bytes kept_addresses() const { return held == 0 && base != 0 ? reserved : 0; }

    std::string text;
    DeviceAllocator* on = nullptr;
    uint64_t count = 1;
    IpcFd socket;  // when it ends, the block is unpinned in its own process
    bool legacy = false;
    Address base = 0;    // reserved, or opened by the driver; 0: neither
    Bytes reserved = 0;  // of a VMM block
    Bytes mapped = 0;    // from `base` on
    Handle handle = 0;   // imported and not yet released
    Bytes handle_bytes = 0;
    Bytes held = 0;    // memory of the other process, mapped or as a handle
    Bytes offset = 0;  // of the block, from `base`
    Bytes bytes = 0;
  };

  void check_device(const IpcHandle& handle, int device);
  std::unique_ptr<Import> import(const std::string& text, const IpcHandle& handle,
                                 DeviceAllocator& device);
  void end_asking(const std::string& text);
  IpcReply ask(const Import& import, const IpcRequest& request, std::vector<IpcFd>* fds);
  void connect(Import& import, const IpcHandle& handle, const IpcRequest& request, IpcReply* reply);
  Status map_all(Import& import, IpcRequest request, const IpcReply& reply,
                 const std::vector<int>& grants);
  Status take_apart(Import& import);
  std::string give_up(std::unique_ptr<Import> import);
  std::string owe(std::unique_ptr<Import> import, const Status& refusal);
  void settle_owed();

  Driver& driver_;
  IpcServer server_;
  // Guards what follows. Held while a block is closed, but not while another process is asked.
  std::mutex mutex_;
  std::unordered_set<std::string> asking_;  // the texts that are being opened
  std::condition_variable asked_;           // one of them is open, or refused
  std::map<Address, std::unique_ptr<Import>> imports_;
  std::unordered_map<std::string, Address> opened_;  // by text
  std::vector<std::unique_ptr<Import>> owed_;        // the driver refused to take these back
};

}  // namespace glake
