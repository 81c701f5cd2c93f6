// Copies on a link share it equally, whatever was planned. So a path whose planned share is larger
// than that of its neighbours needs more copies at once.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "plan/topology.h"

namespace glake::transfer {

// Sets `at_once` and `nearest_at_once` of each path, so that the copies get about their planned
// rates if all of these plans are carried out together. A plan with the direct path only is one
// copy.
void balance(const topology::Topology& topology, std::vector<TransferPlan>* plans);

}  // namespace glake::transfer
