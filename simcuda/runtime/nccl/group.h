// Group semantics. What a thread calls between ncclGroupStart and ncclGroupEnd is done at the end.
// The parts of one communicator and stream become one operation.
#pragma once

#include "joining.h"

namespace nccl {

void group_start();
ncclResult group_end();

// Submits at once, or at the end of the thread's group.
ncclResult submit(std::shared_ptr<Engine> engine, CUstream stream, const Part& part);
ncclResult submit(Joining joining);

}  // namespace nccl
