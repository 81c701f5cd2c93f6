// Keeps what was decided for copies that began while nothing else ran. A copy that is the same in
// all that the decision depends on goes the same way. To decide again would take tens of
// microseconds of its caller's time. What each path of such a copy took corrects the division of
// the next one (division_trials.h).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "transfer/run/division_trials.h"
#include "transfer/run/share_out.h"

namespace glake::transfer {

class Decisions {
 public:
  // All that a decision depends on. The copy has one range, on any sockets. Plans are compared by
  // their addresses: the planner returns the same objects until something is learnt or lent.
  struct Question {
    Bytes bytes = 0;
    std::vector<PlanPtr> plans;
    std::vector<Expected> next;
    bool known = false, possible = false;  // as in Outlook; whether a plain copy is possible
    bool operator==(const Question& other) const;
  };

  // What is kept of the one copy that it asks about. If nothing is, what is decided now is kept
  // there. Valid until the next call.
  DivisionTrials& of(Question question);
  // A copy that was divided this way ran alone, and took these times.
  void saw(const DivisionPtr& division, const DivisionTimes& times);
  void forget() { kept_.clear(); }

 private:
  std::vector<std::pair<Question, DivisionTrials>> kept_;
  size_t oldest_ = 0;
};

}  // namespace glake::transfer
