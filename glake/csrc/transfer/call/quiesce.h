#pragma once

#include "base/transfer_tuning.h"
#include "driver/driver.h"

namespace glake::transfer {

// Waits until all work of a stream is done. It asks again after an error, because the first answer
// after a failed copy is that copy's error. False: the driver does not tell.
inline bool quiesce(Driver& driver, int device, StreamHandle stream) {
  for (int i = 0; i < TransferTuning::kQuestions; ++i) {
    if (driver.synchronize_stream(device, stream).ok()) return true;
  }
  return false;
}

}  // namespace glake::transfer
