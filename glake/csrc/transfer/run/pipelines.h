// Pipelines, and the events around a whole transfer. A pipeline is the streams, buffers and events
// by which chunks go from hop to hop of a path without a thread.
#pragma once

#include <array>
#include <map>
#include <memory>
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
  };
  // A buffer between two hops. A chunk is in it from `filled`, an event of the hop before, until
  // `emptied`, an event of the hop behind.
  struct Buffer {
    Slot slot;
    EventId filled = 0, emptied = 0;
  };
  // The buffers after one hop, all in one place. The first `lent` have a slot.
  struct Between {
    Place place;
    std::vector<Buffer> buffers;
    size_t lent = 0;
    Bytes bytes = 0;  // of the smallest slot
  };
  std::vector<Step> steps;       // one for each hop
  std::vector<Between> between;  // one for each hop but the last

  // Whether its streams and buffers are where this path's hops need them.
  bool on_way(const Path& path) const;
  // Whether it can carry chunks of so many bytes over this path.
  bool fits(const Path& path, Bytes bytes) const;
};
// It is nobody's again once the last transfer that holds it is done.
using PipelinePtr = std::shared_ptr<Pipeline>;

// Keeps pipelines until the engine closes. A pipeline serves one transfer until its copies are
// done, or until a transfer behind it in the same stream takes it over.
class PipelinePool {
 public:
  PipelinePool(Driver& driver, Slots& slots) : driver_(driver), slots_(slots) {}
  PipelinePool(const PipelinePool&) = delete;
  PipelinePool& operator=(const PipelinePool&) = delete;

  // A pipeline for this path, with `buffers` buffers of `bytes` bytes between two hops. Throws
  // Error.
  PipelinePtr take(const Path& path, size_t buffers, Bytes bytes);
  // Lends it more buffers between two hops if it has fewer than `buffers`. Transfers that were
  // enqueued before do not mind. Throws Error.
  void widen(Pipeline* line, size_t buffers, Bytes bytes);
  // How many pipelines transfers hold.
  size_t lent();
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
  void give(Pipeline line);
  Status make_streams(Pipeline* line);
  Status make_events(Pipeline* line, size_t hop, Pipeline::Buffer* buffer);
  Status destroy(Pipeline* line);

  Driver& driver_;
  Slots& slots_;
  std::mutex mutex_;
  std::map<Key, std::vector<Pipeline>> spare_;
  std::map<int, std::vector<EventId>> timers_;  // by device
  size_t lent_ = 0;
  bool closed_ = false;
};

}  // namespace glake::transfer
