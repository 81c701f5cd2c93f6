// Whose copy engine makes the first copy of a relayed path that leaves a GPU. A relay that reads
// from it makes the call in its own context. Calls into the context of the copy's own GPU would
// follow each other, for all paths. Several GPUs read from one at least as fast as it writes to
// them: 177.7 and 176.0 GB/s on H800, 794.9 and 731.0 on GB300 (published runs of nvbandwidth,
// one_to_all).
#pragma once

#include <vector>

#include "plan/plan.h"
#include "plan/topology.h"

namespace glake::transfer {

// Sets `reads` of first hops over NVLink, and their routes, where the demand's relays may read. To
// read from one GPU takes more of a link than to write. So relays of a slow plan read only where
// links have room for it. Those of a fast plan may also lose a little of their rate, because its
// calls would take longer than that costs.
void choose_engines(const topology::Topology& topology, const std::vector<Demand>& demands,
                    std::vector<TransferPlan>* plans);

}  // namespace glake::transfer
