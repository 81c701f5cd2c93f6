// The streams and events of one submitter. Only its thread uses them.
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

  // The next stream for a copy. A DeviceScope of the device must be open. For each pair of places,
  // `flows` streams take turns. So the bytes of one copy hide the start of the next, and no copy
  // waits for a copy between other places. `alone`: all copies use one stream, one after the other,
  // because the link has rate to spare.
  Status next(int device, const Hop& hop, unsigned flows, bool alone, StreamHandle* stream);
  Status event(int device, LentEvent* event);
  void give(int device, EventId id) noexcept { spare_[device].push_back(id); }
  // Destroys the stream, so that work that is stuck in it delays no other work. The driver keeps
  // the stream until that work has ended.
  void abandon(StreamHandle stream);
  // Gives all back. False if the driver refused some of it.
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
