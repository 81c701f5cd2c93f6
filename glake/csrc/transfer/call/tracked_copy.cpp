#include "transfer/call/tracked_copy.h"

#include "base/json_text.h"
#include "transfer/call/plain_copies.h"

namespace glake::transfer {

void TrackedCopy::make_stream_wait(int device, StreamHandle stream) {
  devices_.open(device);
  if (track_->done) return;
  const Status s = driver_.wait_stream(device, stream, track_->event);
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "holding a stream: " + driver_.describe(s));
}

void TrackedCopy::progress(Bytes* done, Bytes* total) {
  *total = track_->bytes;
  *done = owner_.done(track_.get()) ? *total : 0;
}

std::string TrackedCopy::result() {
  JsonText out;
  out.text("state", done() ? "done" : "running").flag("relayed", false);
  out.number("bytes", static_cast<double>(track_->bytes)).flag("captured", false);
  std::string refusals;
  if (track_->why_plain != nullptr) {
    refusals = JsonText().text("path", "*").text("reason", track_->why_plain).done();
  }
  return out.raw("paths", "[]").raw("refusals", "[" + refusals + "]").done();
}

}  // namespace glake::transfer
