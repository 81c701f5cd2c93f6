// The streams and events of one submitter, used by its thread alone.
#pragma once

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "driver/driver.h"
#include "transfer/run/lent_event.h"
#include "transfer/run/path_run.h"

namespace glake::transfer {

class WorkStreams {
 public:
  explicit WorkStreams(Driver& driver) : driver_(driver) {}
  WorkStreams(const WorkStreams&) = delete;
  WorkStreams& operator=(const WorkStreams&) = delete;
  ~WorkStreams() { close(); }

  // A DeviceScope of the device is open. `flows` streams of each way between two places take turns,
  // so that one copy's start hides behind another's bytes, and none waits for a slower way's.
  // `alone`: one after the other, where the link has room to make up for it.
  Status next(int device, const Hop& hop, unsigned flows, bool alone, StreamHandle* stream);
  Status event(int device, LentEvent* event);
  void give(int device, EventId id) noexcept { spare_[device].push_back(id); }
  // Destroys the stream, so that work which is stuck in it holds no other work up. The driver ends
  // the stream with that work.
  void abandon(StreamHandle stream);
  // Gives all back; false if the driver refused some of it.
  bool close() noexcept;

 private:
  struct Way {
    std::array<StreamHandle, TransferTuning::kMostFlows> streams{};
    size_t turn = 0;
  };
  Driver& driver_;
  std::map<std::array<int, 5>, Way> ways_;  // by device, from and to
  std::map<int, std::vector<EventId>> spare_;
  std::map<int, size_t> made_;  // events of each device
};

}  // namespace glake::transfer
