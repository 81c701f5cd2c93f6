// Lanes: the streams and events by which one chunk after the other goes all hops of a path with no
// thread behind it. Hops on one device share a stream; between devices an event hands over.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "transfer/buffers/slots.h"
#include "transfer/run/chunk_copier.h"

namespace glake::transfer {

struct Lane {
  struct Step {
    int device = -1;
    StreamHandle stream = 0;
    EventId event = 0;      // recorded behind this hop's copy, where somebody waits for it
    bool crossing = false;  // the next hop is another device's
  };
  std::vector<Step> steps;  // of each hop
  // Of one transfer:
  std::vector<Slot> slots;             // between two hops
  std::vector<KernelBuffers> kernels;  // of its launches
  bool begun = false;                  // its first stream has something of the transfer's

  // The first hop's next copy must wait for the last hop's: on one stream it does anyway.
  bool crosses() const { return steps.front().stream != steps.back().stream; }
};

// Kept until the engine closes. A lane is one transfer's until its copies are done.
class LanePool {
 public:
  explicit LanePool(Driver& driver) : driver_(driver) {}
  LanePool(const LanePool&) = delete;
  LanePool& operator=(const LanePool&) = delete;

  Lane take(const Path& path);  // throws Error
  void give(Lane lane);
  // Gives all streams and events back; every lane must have come back. Throws Error, and may be
  // tried again.
  void close();

 private:
  using Key = std::vector<int>;  // the device of each hop
  Lane make(const Key& devices);
  Status make_step(Lane* lane, size_t hop);
  Status destroy(Lane* lane);

  Driver& driver_;
  std::mutex mutex_;
  std::map<Key, std::vector<Lane>> spare_;
};

}  // namespace glake::transfer
