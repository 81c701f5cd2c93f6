// A copy that a caller has begun: how to wait for it, whichever way it goes.
#pragma once

#include <string>
#include <vector>

#include "driver/driver.h"

namespace glake::transfer {

// The bytes of a copy that have arrived over one path.
struct CarriedPath {
  std::string name;
  Bytes bytes = 0;
  bool relayed = false;
};

class Copy {
 public:
  virtual ~Copy() = default;

  // GLAKE_OK, GLAKE_BUSY_TIMEOUT, or what ended the copy, with its text.
  virtual int wait(uint64_t timeout_ns, std::string* text) = 0;
  virtual bool done() = 0;
  // Whether it is over, and no copy of it that was given up may still read or write.
  virtual bool settled() = 0;
  // Later work of the stream waits for the copy; the device's context is open. Throws Error.
  virtual void make_stream_wait(int device, StreamHandle stream) = 0;
  // Stops what has not begun. A copy that is the driver's already goes on.
  virtual void cancel() = 0;
  // Nobody asks for it any more; it goes on.
  virtual void release() = 0;
  virtual void progress(Bytes* done, Bytes* total) = 0;
  // As JSON.
  virtual std::string result() = 0;
  // None: a plain copy.
  virtual std::vector<CarriedPath> paths() { return {}; }
};

}  // namespace glake::transfer
