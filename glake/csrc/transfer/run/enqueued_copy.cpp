#include "transfer/run/enqueued_copy.h"

#include "transfer/call/plain_copies.h"

namespace glake::transfer {

void EnqueuedCopy::make_stream_wait(int device, StreamHandle stream) {
  devices_.open(device);
  if (transfer_->over()) return;
  const Status s = driver_.wait_stream(device, stream, transfer_->ended());
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "holding a stream: " + driver_.describe(s));
}

void EnqueuedCopy::progress(Bytes* done, Bytes* total) {
  *total = transfer_->request.parts.total();
  *done = owner_.landed(transfer_);
}

}  // namespace glake::transfer
