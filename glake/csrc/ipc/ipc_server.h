// The thread that hands this process's shared blocks to others: "glake-ipc", started at the first
// share. A connection is one opening of one block; its end, however it comes, ends the pin.
#pragma once

#include <atomic>
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
  // Ends every connection, and with it its pin, and the thread.
  void stop();
  // A number for a block of this device; others ask for it by that.
  uint64_t number(Device& device);
  // Where to ask and with what, for the handle.
  void fill(IpcHandle* handle) const;
  bool is_mine(const IpcHandle& handle) const;

 private:
  struct Connection {
    IpcFd socket;
    Device* device = nullptr;  // once it has opened its block
    SharedBlock block;
  };
  static constexpr size_t kMostConnections = 4096;

  void run();
  void serve();
  bool accept_one();
  bool answer(Connection& connection);
  void open(Connection& connection, const IpcRequest& request, IpcReply* reply);
  void next(Connection& connection, uint64_t from, IpcReply* reply, std::vector<IpcFd>* fds);
  void end(Connection& connection);

  Driver& driver_;
  mutable std::mutex mutex_;  // of starting and stopping
  bool running_ = false;
  std::thread thread_;
  IpcFd listener_, wake_;  // wake_, once written to, ends the thread
  uint64_t pid_ = 0, name_ = 0;
  IpcToken token_{};
  std::atomic<uint64_t> last_{0};
  std::atomic<Device*> devices_[64] = {};
  std::vector<std::unique_ptr<Connection>> connections_;  // the thread's own
};

}  // namespace glake
