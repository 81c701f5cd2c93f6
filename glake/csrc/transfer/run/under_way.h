// The copies that the driver has and that are not done, as far as the scheduler knows: enqueued
// transfers, and plain copies that are large or followed by others. The forecast says how they
// share the links.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "transfer/run/division_trials.h"
#include "transfer/run/flow_forecast.h"
#include "transfer/run/live_burst.h"

namespace glake::transfer {

// The scheduler's lock guards it.
class UnderWay {
 public:
  struct Enqueued {
    const void* key;
    Demand demand;
    StreamKey stream;
    DecisionPtr decision;
    uint64_t began;                   // when
    bool alone;                       // no copy of another stream was or came beside it
    std::shared_ptr<LiveBurst> live;  // its burst; null: none is known
    size_t number = 0;                // of the copy in its burst
  };

  explicit UnderWay(const topology::Topology* topology) : forecast_(topology) {}

  FlowForecast& forecast() { return forecast_; }
  // How many copies have begun, and how many are under way.
  uint64_t begun() const { return begun_; }
  size_t count() const { return enqueued_.size() + plain_.size(); }
  // Begins a transfer. It counts until it is taken.
  void add(Enqueued copy);
  // Returns the transfer, which is done. Nothing: it never began.
  std::optional<Enqueued> take(const void* key);
  // Begins a plain copy that should be done at `until`. Nothing will tell when it is.
  void add_plain(const Demand& demand, StreamKey stream, Flow flow, uint64_t now, uint64_t until,
                 LiveBurst* live);
  // Adds the demands of copies under way, one for all copies of a stream that go the same way. The
  // streams `without` are left out.
  void add_demands(uint64_t now, const std::vector<StreamKey>& without,
                   std::vector<Demand>* demands);
  std::vector<Demand> enqueued() const;
  // The GPUs that transfers of other streams pass, a bit each.
  uint32_t gpus(StreamKey without) const;
  // Whether a transfer in this stream is under way, and whether one of them is a trial.
  bool in(StreamKey stream) const;
  bool tries(StreamKey stream) const;

 private:
  struct Plain {
    Demand demand;
    StreamKey stream;
    uint64_t until;
  };
  void come_beside(StreamKey stream);

  FlowForecast forecast_;  // of the copies in these two lists
  std::vector<Enqueued> enqueued_;
  std::vector<Plain> plain_;
  uint64_t begun_ = 0;
};

}  // namespace glake::transfer
