// Pipelines: the streams and events by which chunks go from hop to hop of a path with no thread
// behind them; and the events around a whole transfer.
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
  // Between two hops. A chunk is in it from the event of the one to that of the other.
  struct Buffer {
    Slot slot;
    EventId filled = 0, emptied = 0;
  };
  std::vector<Step> steps;  // of each hop
  // After each hop but the last; `buffers` of them have a slot, those of one transfer.
  std::vector<std::vector<Buffer>> between;
  std::array<EventId, TransferTuning::kFlows> ended{};  // timers behind the last hop's copies
  // Of one transfer:
  size_t buffers = 0;                  // chunks between two hops, at most
  size_t chunks = 0;                   // submitted so far, or tried
  std::vector<KernelBuffers> kernels;  // of its launches
};

// Kept until the engine closes. A pipeline is one transfer's until its copies are done.
class PipelinePool {
 public:
  PipelinePool(Driver& driver, Slots& slots) : driver_(driver), slots_(slots) {}
  PipelinePool(const PipelinePool&) = delete;
  PipelinePool& operator=(const PipelinePool&) = delete;

  // `buffers` of `bytes` each between two hops. Throws Error.
  Pipeline take(const Path& path, size_t buffers, Bytes bytes);
  void give(Pipeline line);
  // An event that can be timed, of the device's context. What is kept serves the next transfer;
  // none is lost where the driver refuses to destroy it.
  Status timer(int device, EventId* event);
  void keep_timer(int device, EventId event);
  // Gives all streams and events back; every pipeline must have come back. Throws Error, and may be
  // tried again.
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
