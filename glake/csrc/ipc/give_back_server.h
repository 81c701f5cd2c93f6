// The thread that gives this process's idle memory back to the driver when another process of the
// same user runs out of memory on the same GPU. It is named "glake-give-back". It listens by one
// socket for each GPU, whose name tells which, so that nobody asks processes of other GPUs. One
// connection is one question.
#pragma once

#include <atomic>
#include <chrono>
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
  // The device is asked from now on, until stop(). Throws Error(GLAKE_INTERNAL) if the system
  // refuses a socket.
  void serve(DeviceAllocator& device);
  bool is_mine(const IpcPlace& place) const;
  // Whether a process that listens there uses this GPU. (Two GPUs may have one hash.)
  static bool may_use(const IpcPlace& place, const DeviceUuid& gpu);

 private:
  struct Listener {
    IpcPlace place;
    IpcFd socket;
  };

  using Clock = std::chrono::steady_clock;
  // A connection that has not asked yet.
  struct Asker {
    IpcFd socket;
    Clock::time_point until;
  };

  void run();
  void turn(std::vector<Asker>* askers);
  bool accept_on(int listener, std::vector<Asker>* askers);
  void answer(const IpcFd& socket);
  Bytes give(const GiveBackRequest& request, bool* uses_gpu);

  Driver& driver_;
  std::thread thread_;
  IpcFd wake_;  // a write to it makes the thread look at what follows
  std::atomic<bool> ends_{false};
  IpcPlace place_;    // the name is random in its lower half, and has no GPU yet
  std::mutex mutex_;  // guards what follows
  std::vector<Listener> listeners_;
  std::vector<DeviceAllocator*> devices_;
};

}  // namespace glake
