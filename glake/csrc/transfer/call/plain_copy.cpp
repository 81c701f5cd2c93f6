#include "transfer/call/plain_copy.h"

#include "base/json_text.h"
#include "transfer/call/plain_copies.h"

namespace glake::transfer {

// The stream that has the copy. False: it was the own stream of an engine that is closed, which has
// waited for it.
bool PlainCopy::stream(StreamHandle* stream) {
  *stream = id_.stream();
  if (!id_.of_engine()) return true;
  if (id_.engine() != devices_.number()) return false;
  *stream = devices_.plain_stream(id_.device(), id_.outward());
  return true;
}

int PlainCopy::wait(uint64_t, std::string* text) {
  if (id_.captured()) return GLAKE_OK;  // the copy runs when the graph does
  StreamHandle on = 0;
  if (!stream(&on)) return GLAKE_OK;
  // Another thread's own default stream cannot be named here.
  const bool mine = !is_thread_stream(on) || on == this_thread_stream();
  const Status s =
      mine ? driver_.synchronize_stream(id_.device(), on) : driver_.synchronize(id_.device());
  if (s.ok()) return GLAKE_OK;
  *text = "waiting for a plain copy's stream: " + driver_.describe(s);
  return GLAKE_DRIVER_ERROR;
}

bool PlainCopy::done() {
  StreamHandle on = 0;
  bool idle = id_.captured() || !stream(&on);
  if (!idle) driver_.stream_idle(id_.device(), on, &idle);
  return idle;
}

void PlainCopy::make_stream_wait(int device, StreamHandle waiting) {
  devices_.open(device);
  StreamHandle on = 0;
  if (stream(&on)) follow(driver_, device, waiting, id_.device(), on);
}

std::string PlainCopy::result() {
  JsonText out;
  out.text("state", done() ? "done" : "running").flag("relayed", false);
  out.flag("captured", id_.captured());
  return out.raw("paths", "[]").raw("refusals", "[]").done();
}

}  // namespace glake::transfer
