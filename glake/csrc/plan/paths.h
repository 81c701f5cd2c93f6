// The ways a copy can go: directly, over relay GPUs, over host memory. Which of them are worth
// taking is the planner's business.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/topology.h"

namespace glake::transfer {

struct Candidate {
  Path path;
  std::vector<int> relays;  // GPUs on the way, ends excluded
  topology::Route loads;    // limit (as `edge`), load per unit of rate; in order
  int part = 0;             // of striped host memory: the socket it serves
  bool direct = false;
};

struct Candidates {
  std::vector<Candidate> paths;   // the direct one first, then by length
  std::vector<Refusal> refusals;  // relays that cannot help on this machine
};

// All paths with at most `relays` GPUs in a row, without those whose every link another, no longer
// one loads as little. One end may be host memory, or none, or (one plain path) both.
Candidates find_candidates(const topology::Topology& topology, const Place& src, const Place& dst,
                           int relays);

// The route of the one copy without glake; empty: there is none. Striped memory counts as spread.
topology::Route plain_route(const topology::Topology& topology, Place src, Place dst);

}  // namespace glake::transfer
