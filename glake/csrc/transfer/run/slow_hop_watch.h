// Watches whether a hop keeps its run well below the plan. One look spans several chunks and some
// time, and a hop is believed slow only after several looks in a row. Every method runs under the
// state's lock (run_state.h).
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
  // The plan has changed. What was seen says nothing of the new one; begin() starts again.
  void stop();
  // The hop that has been slow at enough looks in a row, -1: none, or the look is not over. A slow
  // hop is told once; then looks are counted anew. `planned`: the run's rate.
  int look(uint64_t now, const Carried& carried, Rate planned, const std::vector<HopMeter>& hops);

 private:
  void start(uint64_t now, const Carried& carried);

  uint64_t since_ = 0;         // when the look began; 0: the watch has not
  Carried then_{0, Bytes{0}};  // what was carried by then
  unsigned slow_looks_ = 0;    // in a row
};

}  // namespace glake::transfer
