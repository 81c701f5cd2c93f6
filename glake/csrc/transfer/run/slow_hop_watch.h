// Watches whether a hop keeps its run well below the plan. One look spans several chunks and some
// time, and a hop is believed slow only after several looks in a row. Callers hold the state's lock
// (run_state.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "transfer/run/hop_meter.h"

namespace glake::transfer {

class SlowHopWatch {
 public:
  // What a run has carried so far.
  struct Carried {
    uint64_t chunks;
    Bytes bytes;
  };

  // The first look spans what is carried from now on, unless it has begun already.
  void begin(uint64_t now, const Carried& carried) {
    if (since_ == 0) start(now, carried);
  }
  // Called when the plan has changed. What was seen so far does not count any more. begin() starts
  // the next look.
  void stop();
  // Returns a hop that was slow at enough looks in a row. -1: there is none, or the look is not
  // over. After a hop is returned, the count of slow looks begins again. `planned` is the run's
  // planned rate.
  int look(uint64_t now, const Carried& carried, Rate planned, const std::vector<HopMeter>& hops);

 private:
  void start(uint64_t now, const Carried& carried);

  uint64_t since_ = 0;         // when the look began; 0: none is under way
  Carried then_{0, Bytes{0}};  // what was carried by then
  unsigned slow_looks_ = 0;    // in a row
};

}  // namespace glake::transfer
