// Stream capture: which work it takes, and what it forbids. Captured work runs when its graph is
// launched. CUDA C++ Programming Guide, Creating a Graph Using Stream Capture.
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
  void abandon(const Stream& stream);  // the stream is destroyed
  void abandon(uint64_t context);      // the context and all its streams are destroyed

  // A call that would break a capture under way returns an error and makes the capture invalid.
  CUresult check_unsafe();                           // for calls that no capture allows
  CUresult check_context(uint64_t context);          // for waits of all its streams
  CUresult check_blocking(Stream* stream);           // for queries and waits of a stream
  CUresult take(Stream* stream, bool* taken);        // for work; *taken: it is for add_node()
  void add_node(Stream* stream, GraphNode node);     // adds the work to the stream's capture
  CUresult refuse(Stream* stream, const char* why);  // makes the stream's capture invalid
  // True for a legacy stream while a blocking stream is captured.
  bool implicated(const Stream& stream) const;
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
