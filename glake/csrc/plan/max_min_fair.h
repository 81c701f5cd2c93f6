// Shares the links of a machine among demands, each of which may use many paths: max-min fair by
// weight, then with as few paths as that takes.
#pragma once

#include <vector>

#include "plan/paths.h"
#include "plan/plan.h"
#include "plan/topology.h"

namespace glake::transfer {

struct Party {
  double weight = 1;
  int parts = 1;  // of striped host memory, each of which must get the same
  std::vector<const Candidate*> paths;
  // The answer: rates of the paths, in order, and their sum.
  std::vector<Rate> rates;
  Rate total = 0;
};

// Fills in `rates` and `total`. No limit of the topology is exceeded.
void fill(const topology::Topology& topology, std::vector<Party>* parties);

// Leaves each demand its `most` fattest paths; false: none had more.
bool keep_fattest(size_t most, std::vector<Party>* parties);

// Keeps to the totals within two hundredths, but takes away the paths they hardly need: a thin path
// costs its chunks' overhead, and in fair sharing takes more of an edge than it was meant to.
void prune(const topology::Topology& topology, std::vector<Party>* parties);

// Keeps to the totals, but loads no path more than that takes, measured by what it could carry
// alone: where a link has room, a path that fell behind can catch up.
void even_out(const topology::Topology& topology, std::vector<Party>* parties);

}  // namespace glake::transfer
