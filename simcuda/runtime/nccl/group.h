// Group semantics: what a thread calls between ncclGroupStart and ncclGroupEnd is done at the end,
// the parts of one communicator and stream as one operation.
#pragma once

#include "joining.h"

namespace nccl {

void group_start();
ncclResult group_end();

// At once, or at the end of the thread's group.
ncclResult submit(std::shared_ptr<Engine> engine, CUstream stream, const Part& part);
ncclResult submit(Joining joining);

}  // namespace nccl
