// Copies that are too small for several paths, or have no useful second path. The driver makes
// them, as it would without glake.
#pragma once

#include <atomic>
#include <string>

#include "transfer/buffers/devices.h"
#include "transfer/call/copy.h"
#include "transfer/call/copy_ids.h"
#include "transfer/call/request.h"

namespace glake::transfer {

// Makes later work of `stream` wait for what `other` has now. Throws Error.
void follow(Driver& driver, int device, StreamHandle stream, int other_device, StreamHandle other);

class PlainCopies {
 public:
  PlainCopies(Driver& driver, Devices& devices) : driver_(driver), devices_(devices) {}

  // Whether the GPU of the request's stream reaches both ends. That GPU makes the copy.
  bool possible(const Request& request);
  // The stream of the copy. Its contexts are open from now on. Its GPU has access to both ends,
  // where the machine allows it: without access a driver stages a copy in host memory.
  StreamHandle stream_for(const Request& request);
  // Throws Error. What the driver took of the copy before it refused the rest is then done.
  void submit(const Request& request, StreamHandle stream);

  uint64_t count() const { return count_.load(); }
  Bytes bytes() const { return bytes_.load(); }

 private:
  // `enqueued` grows by the bytes that the driver takes, also if it refuses others.
  Status submit_parts(const Request& request, StreamHandle stream, Bytes* enqueued);
  Status submit_stretches(const Request& request, const Part& part, StreamHandle stream,
                          Status refused, Bytes* enqueued);
  std::string after_refusal(int device, StreamHandle stream, Bytes enqueued);

  Driver& driver_;
  Devices& devices_;
  std::atomic<uint64_t> count_{0}, bytes_{0};
};

}  // namespace glake::transfer
