// Each GPU has a thread that makes the driver calls of the paths that are given to it. A path over
// many relays has many calls, so those that share a relay go to different threads.
#pragma once

#include "plan/plan.h"

namespace glake::transfer {

// Sets `worker` of each path with relays: a GPU that the path passes.
void spread_workers(TransferPlan* plan);

}  // namespace glake::transfer
