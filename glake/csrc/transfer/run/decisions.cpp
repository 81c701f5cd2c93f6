#include "transfer/run/decisions.h"

#include <algorithm>
#include <utility>

#include "base/transfer_tuning.h"

namespace glake::transfer {
namespace {

// The same decision for a copy of another size, which is yet to be cut.
DecisionPtr for_other_size(const Decision& known) {
  auto decision = std::make_shared<Decision>();
  decision->plan = known.plan;
  decision->calls_ns = known.calls_ns;
  if (known.division != nullptr) {
    decision->division = std::make_shared<const Division>(*known.division);
  }
  return decision;
}

}  // namespace

bool Decisions::Question::like(const Question& other) const {
  const auto same = [](const Expected& a, const Expected& b) {
    return a.plan == b.plan && a.bytes == b.bytes && a.copies == b.copies;
  };
  return known == other.known && possible == other.possible && side_by_side == other.side_by_side &&
         behind == other.behind && plans == other.plans &&
         std::equal(next.begin(), next.end(), other.next.begin(), other.next.end(), same);
}

DivisionTrials& Decisions::of(Question question) {
  ++asked_;
  for (Kept& kept : kept_) {
    if (!(kept.question == question)) continue;
    kept.asked = asked_;
    return kept.trials;
  }
  Kept begun = begin(std::move(question));
  if (kept_.size() < TransferTuning::kMostDecisions) {
    return kept_.emplace_back(std::move(begun)).trials;
  }
  const auto before = [](const Kept& a, const Kept& b) { return a.asked < b.asked; };
  return (*std::min_element(kept_.begin(), kept_.end(), before) = std::move(begun)).trials;
}

// Takes the decision that was improved most of those that were first made for a near size; of
// several, that of the nearest size.
Decisions::Kept Decisions::begin(Question question) const {
  const auto apart = [&](Bytes bytes) {
    const auto a = static_cast<double>(bytes), b = static_cast<double>(question.bytes);
    return std::max(a, b) / std::max(std::min(a, b), 1.0);
  };
  const auto rank = [&](const Kept& kept) {
    return std::pair(-kept.trials.tries(), apart(kept.question.bytes));
  };
  const Kept* known = nullptr;
  for (const Kept& kept : kept_) {
    const bool good = kept.trials.best(0) != nullptr && kept.question.like(question) &&
                      apart(kept.decided_for) <= TransferTuning::kNearSize;
    if (!good) continue;
    if (known == nullptr || rank(kept) < rank(*known)) known = &kept;
  }
  Kept begun{std::move(question), DivisionTrials(1), 0, asked_};
  begun.decided_for = known != nullptr ? known->decided_for : begun.question.bytes;
  if (known != nullptr) begun.trials.decide(0, for_other_size(*known->trials.best(0)));
  return begun;
}

void Decisions::saw(const DivisionPtr& division, const DivisionTimes& times) {
  for (Kept& kept : kept_) {
    const DecisionPtr& next = kept.trials.next(0);
    if (next != nullptr && next->division == division) return kept.trials.saw({times}, times.ns);
  }
}

}  // namespace glake::transfer
