// Shares the links of a machine among demands, each of which may use many paths. The shares are
// max-min fair by weight. Then paths that add little are dropped.
#pragma once

#include <vector>

#include "plan/paths.h"
#include "plan/plan.h"
#include "plan/topology.h"

namespace glake::transfer {

struct Party {
  double weight = 1;
  int parts = 1;  // of striped host memory; each must get the same rate
  std::vector<const Candidate*> paths;
  // The answer: rates of the paths, in order, and their sum.
  std::vector<Rate> rates;
  Rate total = 0;
};

// Fills in `rates` and `total`. No limit of the topology is exceeded.
void fill(const topology::Topology& topology, std::vector<Party>* parties);

// Leaves each demand the `most` paths with the highest rates. Returns false if no demand had more
// paths.
bool keep_fattest(size_t most, std::vector<Party>* parties);

// Drops the paths that the totals hardly need. No total falls by more than two hundredths. A thin
// path is not worth the overhead of its chunks. It also takes more of an edge than planned, because
// copies on an edge share it equally.
void prune(const topology::Topology& topology, std::vector<Party>* parties);

// Evens out the load of the paths and keeps the totals. A path's load is its rate as a part of what
// it could carry alone. The highest loads are made as low as the totals allow. Then links have
// room, and a path that fell behind can catch up. The direct path is not held back.
void even_out(const topology::Topology& topology, std::vector<Party>* parties);

}  // namespace glake::transfer
