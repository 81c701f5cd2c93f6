// Keeps what was decided for copies that began while nothing else ran. A copy that is the same in
// all that the decision depends on goes the same way. To decide again would take tens of
// microseconds of its caller's time.
#pragma once

#include <memory>
#include <vector>

#include "transfer/run/share_out.h"

namespace glake::transfer {

struct Decision {
  PlanPtr plan;                   // the plan whose paths the shares name
  std::vector<PathShare> shares;  // empty: a plain copy does better
  std::vector<Flow> flows;        // the shares in the form that the forecast takes
  uint32_t gpus = 0;              // a bit for each GPU that the shares' paths pass
};
using DecisionPtr = std::shared_ptr<const Decision>;

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

  DecisionPtr find(const Question& question) const;  // null: no decision is kept for it
  void keep(Question question, DecisionPtr decision);
  void forget() { kept_.clear(); }

 private:
  std::vector<std::pair<Question, DecisionPtr>> kept_;
  size_t oldest_ = 0;
};

}  // namespace glake::transfer
