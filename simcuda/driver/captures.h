// Stream capture: what it takes in, what it forbids. Captured work runs when its graph is launched.
// CUDA C++ Programming Guide, Creating a Graph Using Stream Capture.
#pragma once

#include <vector>

#include "graph.h"
#include "stream.h"
#include "types.h"

namespace simcuda {

class Captures {
 public:
  Captures(Streams* streams, Graphs* graphs) : streams_(streams), graphs_(graphs) {}

  CUresult begin(Stream* stream, CUstreamCaptureMode mode);
  CUresult end(Stream* stream, CUgraph* graph);
  void abandon(const Stream& stream);  // it is destroyed
  void abandon(uint64_t context);      // and all its streams

  // A call that would break a capture under way says so and spoils it.
  CUresult check_unsafe();                           // for calls no capture allows
  CUresult check_blocking(Stream* stream);           // for queries and waits of a stream
  CUresult take(Stream* stream, bool* taken);        // work: *taken if it goes into a capture,
  void add_node(Stream* stream, GraphNode node);     // which is done by this
  CUresult refuse(Stream* stream, const char* why);  // spoils the stream's
  bool implicated(const Stream& stream) const;       // legacy, while a blocking stream is captured
  CUresult join(Stream* stream, const Event& event, bool* taken);

 private:
  Streams* const streams_;
  Graphs* const graphs_;
  std::vector<CapturePtr> captures_;  // under way
  uint64_t ids_ = 0;
};

// The calling thread's capture mode (cuThreadExchangeStreamCaptureMode).
extern thread_local CUstreamCaptureMode capture_mode;

}  // namespace simcuda
