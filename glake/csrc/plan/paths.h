// Finds the ways of a copy: the direct one, and those over relay GPUs or over host memory. The
// planner decides which of these ways are worth taking.
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
  int part = 0;             // of striped host memory: the socket that it serves
  bool direct = false;
};

struct Candidates {
  std::vector<Candidate> paths;   // the direct one first, then by length
  std::vector<Refusal> refusals;  // relays that cannot help on this machine
};

// Returns all useful paths with at most `relays` GPUs in a row. A path is left out if another path
// needs no more hops and puts no more load on any limit. Either end may be host memory. If both
// are, the only path is the direct one.
Candidates find_candidates(const topology::Topology& topology, const Place& src, const Place& dst,
                           int relays);

// The route of the one copy that a program makes without glake. It is empty if there is no such
// route. Striped memory counts as spread.
topology::Route plain_route(const topology::Topology& topology, Place src, Place dst);

}  // namespace glake::transfer
