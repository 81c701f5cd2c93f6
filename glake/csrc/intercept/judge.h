// Whether a copy is one that glake can prove to be the same when it is carried.
#pragma once

#include "intercept/copy.h"

namespace glake::intercept {

// kNone, and the copy's devices are set; else why it is the driver's.
Reason judge(Copy* copy);

// Memory of other processes, opened by cuIpcOpenMemHandle.
void note_ipc(CUdeviceptr base, bool open);

}  // namespace glake::intercept
