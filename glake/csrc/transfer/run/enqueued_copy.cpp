#include "transfer/run/enqueued_copy.h"

#include <string>

namespace glake::transfer {

void EnqueuedCopy::make_stream_wait(int device, StreamHandle stream) {
  devices_.open(device);
  if (transfer_->over()) return;
  if (!transfer_->marked()) {
    std::string text;
    owner_.wait(transfer_, UINT64_MAX, &text);
    return;
  }
  const Status s = driver_.wait_stream(device, stream, transfer_->ended());
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "holding a stream: " + driver_.describe(s));
}

void EnqueuedCopy::progress(Bytes* done, Bytes* total) {
  *total = transfer_->request.parts.total();
  *done = owner_.landed(transfer_);
}

}  // namespace glake::transfer
