// Copies too small, or without a second path worth taking: made as the driver makes them.
#pragma once

#include <atomic>
#include <string>

#include "transfer/buffers/devices.h"
#include "transfer/call/copy.h"
#include "transfer/call/copy_ids.h"
#include "transfer/call/request.h"

namespace glake::transfer {

// Later work of `stream` waits for what `other` holds now. Throws Error.
void follow(Driver& driver, int device, StreamHandle stream, int other_device, StreamHandle other);

class PlainCopies {
 public:
  PlainCopies(Driver& driver, Devices& devices) : driver_(driver), devices_(devices) {}

  // Whether a copy on the request's stream reaches both ends: the stream's GPU makes it.
  bool possible(const Request& request);
  // The stream the copy belongs to; its contexts are open from here on.
  StreamHandle stream_for(const Request& request);
  // Throws Error.
  void submit(const Request& request, StreamHandle stream);

  uint64_t count() const { return count_.load(); }
  Bytes bytes() const { return bytes_.load(); }

 private:
  Status submit_parts(const Request& request, StreamHandle stream);
  Status submit_stretches(const Request& request, const Part& part, StreamHandle stream,
                          Status refused);

  Driver& driver_;
  Devices& devices_;
  std::atomic<uint64_t> count_{0}, bytes_{0};
};

}  // namespace glake::transfer
