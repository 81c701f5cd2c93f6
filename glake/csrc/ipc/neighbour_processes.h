// This process's cooperation with others of the same user (option `cooperate`). It asks them for
// memory when it runs out, and gives its own idle memory back when they ask.
#pragma once

#include <chrono>
#include <vector>

#include "heap/neighbours.h"
#include "ipc/give_back_server.h"

namespace glake {

class NeighbourProcesses : public Neighbours {
 public:
  // Throws Error(GLAKE_INTERNAL) if the system refuses a socket or a thread.
  explicit NeighbourProcesses(Driver& driver) : driver_(driver), server_(driver) {
    server_.start();
  }
  ~NeighbourProcesses() override;
  NeighbourProcesses(const NeighbourProcesses&) = delete;
  NeighbourProcesses& operator=(const NeighbourProcesses&) = delete;
  // The device takes part from now on, as long as this object lives. It must live as long.
  void add(DeviceAllocator& device);
  // Asks one process after another, until they have given enough or the time is up.
  Answer ask(int device, Bytes bytes) override;

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  void ask_one(const IpcPlace& place, const GiveBackRequest& request, Deadline deadline,
               Answer* answer);

  Driver& driver_;
  GiveBackServer server_;
  std::vector<DeviceAllocator*> devices_;
};

}  // namespace glake
