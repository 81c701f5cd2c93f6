#include "transfer/call/plain_copy.h"

#include "base/json_text.h"
#include "transfer/call/plain_copies.h"

namespace glake::transfer {

int PlainCopy::wait(uint64_t, std::string* text) {
  if (id_.captured()) return GLAKE_OK;  // the copy runs when the graph does
  // Another thread's own default stream cannot be named here.
  const bool mine = !is_thread_stream(id_.stream()) || id_.stream() == this_thread_stream();
  const Status s = mine ? driver_.synchronize_stream(id_.device(), id_.stream())
                        : driver_.synchronize(id_.device());
  if (s.ok()) return GLAKE_OK;
  *text = "waiting for a plain copy's stream: " + driver_.describe(s);
  return GLAKE_DRIVER_ERROR;
}

bool PlainCopy::done() {
  bool idle = id_.captured();
  if (!idle) driver_.stream_idle(id_.device(), id_.stream(), &idle);
  return idle;
}

void PlainCopy::make_stream_wait(int device, StreamHandle stream) {
  devices_.open(device);
  follow(driver_, device, stream, id_.device(), id_.stream());
}

std::string PlainCopy::result() {
  JsonText out;
  out.text("state", done() ? "done" : "running").flag("relayed", false);
  out.flag("captured", id_.captured());
  return out.raw("paths", "[]").raw("refusals", "[]").done();
}

}  // namespace glake::transfer
