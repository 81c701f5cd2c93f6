// Pipelines, and the events around a whole transfer. A pipeline is the streams and events by which
// chunks go from hop to hop of a path without a thread.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "base/transfer_tuning.h"
#include "transfer/buffers/slots.h"
#include "transfer/run/chunk_copier.h"

namespace glake::transfer {

struct Pipeline {
  struct Step {
    int device = -1;
    std::array<StreamHandle, TransferTuning::kFlows> streams{};
    std::array<EventId, 2> around{};  // timers before and behind one copy
  };
  // A buffer between two hops. A chunk is in it from `filled`, an event of the hop before, until
  // `emptied`, an event of the hop behind.
  struct Buffer {
    Slot slot;
    EventId filled = 0, emptied = 0;
  };
  std::vector<Step> steps;  // one for each hop
  // The buffers after each hop but the last. The first `buffers` of each list have a slot; they
  // serve the current transfer.
  std::vector<std::vector<Buffer>> between;
  std::array<EventId, TransferTuning::kFlows> ended{};  // timers behind the last hop's copies
  // All members below belong to the current transfer.
  size_t buffers = 0;                  // how many chunks may be between two hops
  size_t chunks = 0;                   // chunks that were submitted or tried so far
  std::vector<KernelBuffers> kernels;  // what its kernel launches use
};

// Keeps pipelines until the engine closes. A pipeline belongs to one transfer until its copies are
// done.
class PipelinePool {
 public:
  PipelinePool(Driver& driver, Slots& slots) : driver_(driver), slots_(slots) {}
  PipelinePool(const PipelinePool&) = delete;
  PipelinePool& operator=(const PipelinePool&) = delete;

  // A pipeline for this path, with `buffers` buffers of `bytes` bytes between two hops. Throws
  // Error.
  Pipeline take(const Path& path, size_t buffers, Bytes bytes);
  void give(Pipeline line);
  // Makes an event of the device's context that can be timed. keep_timer() keeps it for the next
  // transfer.
  Status timer(int device, EventId* event);
  void keep_timer(int device, EventId event);
  // Gives all streams and events back to the driver. Every pipeline must have come back. Throws
  // Error, and may be called again.
  void close();

 private:
  using Key = std::vector<int>;  // the device of each hop
  static Key key_of(const Pipeline& line);
  Pipeline spare(const Key& devices);
  void fill(Pipeline* line, const Path& path, size_t buffers, Bytes bytes);
  Status make_streams(Pipeline* line);
  Status make_events(Pipeline* line, size_t hop, Pipeline::Buffer* buffer);
  Status destroy(Pipeline* line);

  Driver& driver_;
  Slots& slots_;
  std::mutex mutex_;
  std::map<Key, std::vector<Pipeline>> spare_;
  std::map<int, std::vector<EventId>> timers_;  // by device
  bool closed_ = false;
};

}  // namespace glake::transfer
