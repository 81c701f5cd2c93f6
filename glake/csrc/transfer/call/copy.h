// A copy that a caller has begun. It offers the same waits for each kind of copy.
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

  // Returns GLAKE_OK, GLAKE_BUSY_TIMEOUT, or the error that ended the copy, with its text.
  virtual int wait(uint64_t timeout_ns, std::string* text) = 0;
  virtual bool done() = 0;
  // Whether the copy is over, and no driver copy that it gave up may still read or write.
  virtual bool settled() = 0;
  // Makes later work of the stream wait for the copy. The device's context must be open. Throws
  // Error.
  virtual void make_stream_wait(int device, StreamHandle stream) = 0;
  // Stops what has not begun. A copy that the driver already has goes on.
  virtual void cancel() = 0;
  // Says that the caller will not ask about the copy any more. The copy goes on.
  virtual void release() = 0;
  virtual void progress(Bytes* done, Bytes* total) = 0;
  // As JSON.
  virtual std::string result() = 0;
  // Empty for a plain copy.
  virtual std::vector<CarriedPath> paths() { return {}; }
};

}  // namespace glake::transfer
