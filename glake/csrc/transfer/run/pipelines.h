// Pipelines, and the events around a whole transfer. A pipeline is the streams, buffers and events
// by which chunks go from hop to hop of a path without a thread.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/transfer_tuning.h"
#include "transfer/buffers/slots.h"
#include "transfer/run/chunk_copier.h"

namespace glake::transfer {

struct Pipeline {
  // The streams of one hop. Each chunk goes through one of them.
  struct Step {
    int device = -1;
    std::vector<StreamHandle> streams;
  };
  // A buffer between two hops. A chunk is in it from `filled`, an event of the hop before, until
  // `emptied`, an event of the hop behind. If one stream has both hops, there are no events: its
  // order says the same.
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
  bool joined = false;           // the second hop has the streams of the first one

  // What a transfer needs of a pipeline. So many chunks flow over each hop at once. There are at
  // most so many buffers behind each hop, and each of them has so many bytes.
  struct Use {
    bool joined = false;
    size_t flows = TransferTuning::kFlows;
    size_t buffers = 1;
    Bytes bytes = 0;
  };
  bool follows_in_stream(size_t hop) const { return joined && hop == 1; }
  // How many of the buffers behind the hop are used. Where the next hop is in the same stream,
  // there is one for each stream.
  size_t buffers_behind(size_t hop, const Use& use) const {
    return follows_in_stream(hop + 1) ? std::min(use.buffers, use.flows) : use.buffers;
  }
  // Whether its streams and buffers are where this path's hops need them.
  bool on_way(const Path& path) const;
  // Whether it can carry chunks over this path.
  bool fits(const Path& path, const Use& use) const;
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

  // A pipeline for this path. Throws Error.
  PipelinePtr take(const Path& path, const Pipeline::Use& use);
  // Gives it more streams, and more buffers between two hops, if it has too few. Transfers that
  // were enqueued before know their own. If the driver refuses some streams, it does with those
  // that it has. Throws Error.
  void widen(Pipeline* line, const Pipeline::Use& use);
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
  using Key = std::pair<std::vector<int>, bool>;  // the device of each hop; `joined`
  static Key key_of(const Pipeline& line);
  Pipeline spare(const Key& key);
  void give(Pipeline line);
  Status make_streams(Pipeline* line, size_t count);
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
