// Keeps what was decided for copies that began while nothing else ran. A copy that is the same in
// all that the decision depends on goes the same way, and so does the first one of a size that is
// near, for as long as such sizes keep coming: to decide again would take up to some milliseconds
// of its caller's time. What each path of such a copy took corrects the division of the next one of
// the same size (division_trials.h).
#pragma once

#include <cstdint>
#include <memory>
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
    bool side_by_side = false;             // as in Outlook
    size_t behind = 0;                     // as in Outlook
    bool operator==(const Question& other) const { return bytes == other.bytes && like(other); }
    bool like(const Question& other) const;  // but for the size
  };

  // What is kept of the one copy that it asks about. If nothing is, it begins with what is kept of
  // a copy that differs a little in size. If there is none either, what is decided now is kept
  // there. Valid until the next call.
  DivisionTrials& of(Question question);
  // A copy that was divided this way ran alone, and took these times.
  void saw(const DivisionPtr& division, const DivisionTimes& times);
  void forget() { kept_.clear(); }

 private:
  struct Kept {
    Question question;
    DivisionTrials trials;
    Bytes decided_for;  // the size of the copy of which something was decided first
    uint64_t asked;     // the number of the last question about it
  };
  Kept begin(Question question) const;

  std::vector<Kept> kept_;  // if full, the one that was not asked about for longest goes
  uint64_t asked_ = 0;      // questions
};

}  // namespace glake::transfer
