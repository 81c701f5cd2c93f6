// Times plain copies that run together. The probe of a topology (glake topo --probe) uses it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "plan/plan.h"
#include "transfer/buffers/devices.h"
#include "transfer/buffers/placed_buffer.h"
#include "transfer/buffers/slots.h"

namespace glake::transfer {

// A copy between two places. At least one is a GPU. Host memory is on one socket.
struct TimedCopy {
  Place dst, src;
};

// Keeps its buffers from one set of copies to the next. There is one buffer on each GPU. Each copy
// of a set that uses a socket's memory has pinned host memory of its own.
class CopyTimer {
 public:
  // `topology` may be null.
  CopyTimer(Driver& driver, Devices& devices, Slots& slots, const topology::Topology* topology);
  ~CopyTimer();
  CopyTimer(const CopyTimer&) = delete;
  CopyTimer& operator=(const CopyTimer&) = delete;

  // Makes all copies at once, each `repeats` times on its own stream, after one round that is not
  // timed. ns[i * repeats + r] is the time from the start of copy i until the end of its r-th
  // repeat. Throws Error: GLAKE_COPY_REFUSED if the system places no host memory on a socket,
  // GLAKE_OUT_OF_MEMORY, GLAKE_BUSY_TIMEOUT for copies that stand still.
  void time(const std::vector<TimedCopy>& copies, Bytes bytes, int repeats, uint64_t* ns);
  // Gives all memory and streams back. Throws Error, and may be called again.
  void close();

 private:
  class Event;
  struct Running;
  void check(const std::vector<TimedCopy>& copies, Bytes bytes, int repeats) const;
  Address buffer(Place place, std::map<int, size_t>* used);
  Address host_buffer(int socket, size_t nth);
  StreamHandle stream(int device, size_t nth);
  void enqueue(const std::vector<TimedCopy>& copies, Bytes bytes, int repeats,
               std::vector<Running>* running);
  void begin_together(std::vector<Running>* running);
  void submit(const TimedCopy& copy, const Running& run, Bytes bytes, int round);
  void remember_end(Running* run);
  void settle(uint64_t timeout_ns);

  Driver& driver_;
  Devices& devices_;
  Slots& slots_;
  const topology::Topology* topology_;
  std::mutex mutex_;  // held while a set is timed
  std::map<int, Slot> gpus_;
  std::map<int, std::vector<std::unique_ptr<PlacedBuffer>>> hosts_;  // by socket
  std::map<int, std::vector<StreamHandle>> streams_;                 // by device
  std::map<int, std::vector<EventId>> events_;                       // by device
  std::vector<Event> ends_;  // of copies whose end was not seen
};

}  // namespace glake::transfer
