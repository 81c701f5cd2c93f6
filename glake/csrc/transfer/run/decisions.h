// How copies were dealt out that began while nothing else ran. One that is the same in all that
// this depends on goes the same way: to find it anew takes tens of microseconds of its caller's
// time.
#pragma once

#include <memory>
#include <vector>

#include "transfer/run/share_out.h"

namespace glake::transfer {

struct Decision {
  PlanPtr plan;                   // that the shares are of
  std::vector<PathShare> shares;  // none: a plain copy does better
  std::vector<Flow> flows;        // of the shares
  uint32_t gpus = 0;              // that they pass, as bits
};
using DecisionPtr = std::shared_ptr<const Decision>;

class Decisions {
 public:
  // Of a copy of one range, no matter on which sockets. A plan is one object as long as nothing is
  // learnt or lent anew.
  struct Question {
    Bytes bytes = 0;
    std::vector<PlanPtr> plans;
    std::vector<Expected> next;
    bool known = false, possible = false;  // as Outlook has it; a plain copy is possible
    bool operator==(const Question& other) const;
  };

  DecisionPtr find(const Question& question) const;  // null: it is not kept
  void keep(Question question, DecisionPtr decision);
  void forget() { kept_.clear(); }

 private:
  std::vector<std::pair<Question, DecisionPtr>> kept_;
  size_t oldest_ = 0;
};

}  // namespace glake::transfer
