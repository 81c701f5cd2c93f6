// Finds out how a burst is done soonest, by what it took the last times. The forecast chooses the
// way of planning first. Then the ways that it thinks nearly as good are tried, once each if
// nothing disturbs it. For each way the division of its copies is improved (division_trials.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "transfer/run/bursts.h"
#include "transfer/run/division_trials.h"

namespace glake::transfer {

// The scheduler's lock guards it.
class BurstTrials {
 public:
  explicit BurstTrials(std::vector<Bursts::Copy> copies);

  const std::vector<Bursts::Copy>& copies() const { return copies_; }
  // Whether some copies are behind others in their stream.
  bool queued() const { return queued_; }
  // What was learnt holds for plans of this version of the planner (Planner::version()).
  uint64_t version() const { return version_; }
  void forget(uint64_t version);
  // The way that all copies of the next burst go. kUnknown: the one that the forecast chooses for
  // each of them.
  BurstWay next() const;
  // The forecast chose this way for the whole burst. It expects the burst to be done after so many
  // ns, by the way it goes.
  void expect(BurstWay chosen, double joint_ns, double apart_ns, double plain_ns);
  // A copy went this way by the forecast's choice.
  void chose(BurstWay way);
  DivisionTrials& divisions(BurstWay way) { return *trial(way).divisions; }
  // The next burst goes this way. Returns whether its plain copies are to be timed, because it is
  // not known what a burst takes that does. That is tried a few times: it fails if other copies
  // come between.
  bool wants_time(BurstWay way);
  // Whether plain copies may be timed. Not where the forecast chose them for the whole burst,
  // unless another way took hardly longer, or where the calls that this takes would themselves make
  // the burst slower.
  bool times_plain() const;
  // A burst that went this way had plain copies. So all that is known is that it took at least
  // `ns`. If it was never timed, the way is not tried again. The forecast's choice stays unless it
  // was slower than plain copies.
  void give_up(BurstWay way, uint64_t ns);
  // A burst that went this way took these times. `divided`: all of its copies are divided among
  // paths, so the next burst that goes this way can be timed too.
  void saw(BurstWay way, std::vector<DivisionTimes> times, uint64_t ns, bool divided);

 private:
  struct Trial {
    double expected = 0, least = 0;  // ns; 0: not known
    bool differs = false;            // the forecast chose another way for some copy
    int begun = 0;                   // how many bursts went this way, up to kWayTries
    std::shared_ptr<DivisionTrials> divisions;
  };
  BurstWay fastest() const;
  void look_for_late(BurstWay way, double took);
  Trial& trial(BurstWay way) { return trials_[static_cast<size_t>(way)]; }

  const std::vector<Bursts::Copy> copies_;
  const bool queued_;
  uint64_t version_ = 0;
  std::array<Trial, 4> trials_;  // by BurstWay; kUnknown: the forecast's choices
  double plain_ns_ = 0;          // what plain copies are expected to take
  bool plain_ = false;           // whether the forecast chose them
  int late_ = 0;                 // how many bursts in a row were late
  int timings_ = 0;              // how many bursts were to be timed
};

}  // namespace glake::transfer
