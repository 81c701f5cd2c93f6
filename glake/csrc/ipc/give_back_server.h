// The thread that gives this process's idle memory back to the driver when another process of the
// same user runs out of memory on the same GPU. It is named "glake-give-back". One connection is
// one question.
#pragma once

#include <mutex>
#include <thread>
#include <vector>

#include "heap/device_allocator.h"
#include "ipc/ipc_socket.h"

namespace glake {

struct GiveBackRequest {
  uint32_t magic = kIpcMagic;
  uint32_t unused = 0;
  DeviceUuid uuid{};
  Bytes bytes = 0;
};

struct GiveBackReply {
  uint32_t magic = kIpcMagic;
  uint32_t uses_gpu = 0;  // whether the process holds memory of this GPU through glake
  Bytes given = 0;
};

class GiveBackServer {
 public:
  explicit GiveBackServer(Driver& driver) : driver_(driver) {}
  ~GiveBackServer() { stop(); }
  GiveBackServer(const GiveBackServer&) = delete;
  GiveBackServer& operator=(const GiveBackServer&) = delete;

  // Starts the thread. Throws Error(GLAKE_INTERNAL) if the system refuses.
  void start();
  void stop();
  // The device is asked from now on, until stop().
  void serve(DeviceAllocator& device);
  bool is_mine(const IpcPlace& place) const;

 private:
  void run();
  void answer(const IpcFd& socket);
  Bytes give(const GiveBackRequest& request, bool* uses_gpu);

  Driver& driver_;
  std::thread thread_;
  IpcFd listener_, wake_;  // a write to wake_ ends the thread
  IpcPlace place_;
  std::mutex mutex_;  // guards devices_
  std::vector<DeviceAllocator*> devices_;
};

}  // namespace glake
