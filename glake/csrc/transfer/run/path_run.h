// A path of one transfer: what it has carried, how fast its hops go, and how much it may take next.
// Callers hold the state's lock (run_state.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "plan/plan.h"
#include "transfer/run/health.h"
#include "transfer/run/hop_meter.h"
#include "transfer/run/slow_hop_watch.h"

namespace glake::transfer {

struct PathRun {
  PathRun(const PlannedPath& path, PathHealth* path_health)
      : planned(path), health(path_health), hops(path.path.hops.size(), HopMeter(path.rate)) {}

  const std::string& name() const { return planned.path.name; }
  bool relayed() const { return planned.path.hops.size() > 1; }
  // The socket of the path's host end; kSpread where it has none.
  int node() const;
  // The length of the shortest chunk. Each copy takes `copy_ns` to start, and meanwhile another
  // copy must fill the link.
  Bytes least(uint64_t copy_ns) const;
  // The length of the longest chunk, a power of two. The longer a chunk is, the more its way over a
  // relay costs.
  Bytes most(uint64_t copy_ns) const;
  // Whether a chunk's copy begins only when the copy before it has ended. A short copy does not,
  // because its start would leave a gap on the link.
  bool alone(size_t hop, Bytes bytes, uint64_t copy_ns) const;
  Rate pace() const;  // the rate of its slowest hop
  // When a chunk that is taken now would arrive.
  uint64_t arrival(uint64_t now, Bytes bytes, uint64_t copy_ns) const;
  void replan(const PlannedPath& path);
  // Called when the run takes a chunk. Its hops are watched from then on.
  void begin_watch(uint64_t now) { watch.begin(now, {chunks, landed}); }
  // The hop that has kept the run well below its plan for a while; -1: there is none.
  int slow_hop(uint64_t now) { return watch.look(now, {chunks, landed}, planned.rate, hops); }

  PlannedPath planned;
  PathHealth* health;
  std::vector<HopMeter> hops;
  bool closed = false;  // it takes no more chunks; `why` says why
  bool paced = false;   // takes no more than its share (Transfer::ahead_of_share)
  // Its share is a part of all the transfer's bytes, and not only of its socket's memory, because
  // runs of another socket's memory share a full link with it.
  bool across = false;
  bool withdrawn = false;  // closed by a new plan, which may open it again
  std::string why;
  Bytes claimed = 0, landed = 0;
  Bytes ramp = 0;  // the bytes of the next chunk
  uint64_t chunks = 0, resent = 0;
  unsigned in_flight = 0, in_first_hop = 0, failures = 0;
  SlowHopWatch watch;
};

}  // namespace glake::transfer
