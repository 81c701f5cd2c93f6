// This process's cooperation with others of the same user (option `cooperate`). It asks them for
// memory when it runs out, and gives its own idle memory back when they ask.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>
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
  // Asks one process after another, until they have given enough or the time is up. Those that gave
  // the last time come later, and those that were silent come last, and get little time.
  Answer ask(int device, Bytes bytes) override;

 private:
  using Clock = std::chrono::steady_clock;
  // What a process did when it was last asked, in the order in which they are asked.
  enum class Last { kNothing, kGave, kSilent };
  struct Known {
    Last last = Last::kNothing;
    uint64_t turn = 0;  // rises from answer to answer, so that those who gave take turns
  };
  struct Other {
    IpcPlace place;
    Known known;
  };

  std::vector<Other> others(const DeviceUuid& gpu, Answer* answer);
  void ask_one(const Other& other, const GiveBackRequest& request, int patience, Answer* answer);
  void note(const IpcPlace& place, Last last);

  Driver& driver_;
  std::mutex mutex_;                                      // guards known_ and turn_
  std::map<std::pair<uint64_t, uint64_t>, Known> known_;  // by a place's process and name
  uint64_t turn_ = 0;
  GiveBackServer server_;
  std::vector<DeviceAllocator*> devices_;
};

}  // namespace glake
