// Decides whether glake can prove that a copy stays the same when it is carried.
#pragma once

#include "intercept/copy.h"

namespace glake::intercept {

// Returns kNone and sets the copy's devices, or says why the copy is left to the driver.
Reason judge(Copy* copy);

// Notes memory of another process that cuIpcOpenMemHandle opened.
void note_ipc(CUdeviceptr base, bool open);

}  // namespace glake::intercept
