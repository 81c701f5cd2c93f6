// One burst, from its first copy until its last one is done. What it took shows how good the way is
// that it went (burst_trials.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "transfer/run/burst_trials.h"

namespace glake::transfer {

// The scheduler's lock guards it.
class LiveBurst {
 public:
  LiveBurst() = default;  // it was not foreseen
  explicit LiveBurst(std::shared_ptr<BurstTrials> trials) : trials_(std::move(trials)) {}

  // Its copy `number` is planned. `version`: the planner's.
  void plan_next(const Bursts::Copy& copy, size_t number, uint64_t version);
  // The way that all copies go. kUnknown: the one that the forecast chooses.
  BurstWay way() const { return way_ != BurstWay::kUnknown ? way_ : queues_way_; }
  // Whether the next copy, if it is plain, is to be timed.
  bool timed() const { return timed_ && !spoilt_ && trials_->times_plain(); }
  // The forecast chose a way for the next copy. It expects the burst to be done after so many ns,
  // by the way it is planned.
  void chose(BurstWay way, double joint_ns, double apart_ns, double plain_ns);
  // Its copies form queues, in streams, which all go this way by these plans until it is over. A
  // plan that was made anew for a later copy might go another way than those before.
  void keep_queues(BurstWay way, std::vector<Expected> queues);
  // Fills in these plans. False: there are none.
  bool plan_queues(std::vector<Expected>* queues) const;
  // Returns the trials that say how the next copy goes. Null: none do. `others`: how many copies
  // are under way. `one_range`: the copy has one, so the next one like it can be divided alike.
  DivisionTrials* trials_of_next(size_t others, bool one_range);
  // How many of its copies have begun.
  size_t begun() const { return begun_; }
  // The next copy begins. `before`: how many copies of the process have begun before it. Returns
  // its number in the burst.
  size_t begin(DecisionPtr decision, uint64_t before, uint64_t now);
  // A plain copy of it has begun. Nothing will tell when it is done.
  void begin_plain(uint64_t before, uint64_t now);
  // Copy `number`, which began at `began`, took these times.
  void saw(size_t number, uint64_t began, const DivisionTimes& times);
  // The burst was not foreseen. It went as each copy would go apart. `trials` are for the next one.
  void adopt(std::shared_ptr<BurstTrials> trials);
  // Tells the trials what the burst took, once all of it is done. `begun`: how many copies of the
  // process have begun. If others came between, it shows nothing.
  void settle(uint64_t begun, uint64_t version);

 private:
  std::shared_ptr<BurstTrials> trials_;  // null: it was not foreseen
  uint64_t version_ = 0;                 // of the planner, when it began
  std::vector<StreamKey> streams_;       // of its copies that were planned
  std::vector<Expected> queues_;         // what keep_queues() was told
  BurstWay queues_way_ = BurstWay::kUnknown;
  std::map<StreamKey, uint64_t> ends_;  // ns from the first call until the stream was done
  BurstWay way_ = BurstWay::kUnknown;
  uint64_t before_ = 0, began_ = 0;  // copies begun before its first one, and when that one began
  size_t begun_ = 0, done_ = 0;      // its copies
  size_t unseen_ = 0;                // its plain copies, whose end nobody sees
  size_t fixed_ = 0;                 // its plain copies that were timed
  uint64_t ns_ = 0;                  // from the first copy's call until the last one was done
  std::vector<DivisionTimes> times_;
  std::vector<DecisionPtr> decisions_;
  bool foreseen_ = true;  // its copies were known when it began
  bool timed_ = false;    // its plain copies are to be timed
  bool plain_ = false;    // it had a plain copy that nobody timed
  bool queued_ = false;   // some of its copies are behind others in their stream
  bool spoilt_ = false;   // it shows nothing
};

}  // namespace glake::transfer
