// The thread that gives this process's shared blocks to others. It is named "glake-ipc", and the
// first share starts it. A connection stands for one opening of one block, which stays pinned until
// the connection ends for any reason.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "heap/sharing.h"
#include "ipc/ipc_socket.h"

namespace glake {

class IpcServer {
 public:
  explicit IpcServer(Driver& driver) : driver_(driver) {}
  ~IpcServer() { stop(); }
  IpcServer(const IpcServer&) = delete;
  IpcServer& operator=(const IpcServer&) = delete;

  // Starts the thread if it does not run. Throws Error(GLAKE_INTERNAL) if the system refuses.
  void start();
  // Ends every connection, unpins their blocks, and ends the thread.
  void stop();
  // A new number, by which other processes ask for a block of this device.
  uint64_t number(Device& device);
  // Lets other processes map a whole driver allocation of `bytes` bytes until withdraw() is called.
  // Returns its number, by which they ask.
  uint64_t offer(int device, Handle handle, Bytes bytes);
  // When it returns, the handle is not in use here any more, and may be released.
  void withdraw(uint64_t number);
  // Fills in the socket and the token by which other processes ask.
  void fill(IpcHandle* handle) const;
  bool is_mine(const IpcHandle& handle) const;

 private:
  struct Offer {
    int device = 0;
    Handle handle = 0;
    Bytes bytes = 0;
  };
  struct Connection {
    IpcFd socket;
    Device* device = nullptr;  // null until it has opened its block
    SharedBlock block;
  };

  void run();
  void serve();
  bool accept_one();
  bool answer(Connection& connection);
  void open(Connection& connection, const IpcRequest& request, IpcReply* reply);
  void next(Connection& connection, uint64_t from, IpcReply* reply, std::vector<IpcFd>* fds);
  void give_shard(uint64_t number, IpcReply* reply, std::vector<IpcFd>* fds);
  void end(Connection& connection);

  Driver& driver_;
  mutable std::mutex mutex_;  // guards starting and stopping
  bool running_ = false;
  std::thread thread_;
  IpcFd listener_, wake_;  // a write to wake_ ends the thread
  uint64_t pid_ = 0, name_ = 0;
  IpcToken token_{};
  std::atomic<uint64_t> last_{0};
  std::atomic<Device*> devices_[64] = {};
  std::mutex offers_mutex_;  // held while a handle is exported
  std::map<uint64_t, Offer> offers_;
  std::vector<std::unique_ptr<Connection>> connections_;  // used by the thread alone
};

}  // namespace glake
