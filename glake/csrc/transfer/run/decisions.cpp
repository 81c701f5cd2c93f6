#include "transfer/run/decisions.h"

#include <algorithm>
#include <utility>

#include "base/transfer_tuning.h"

namespace glake::transfer {
bool Decisions::Question::operator==(const Question& other) const {
  const auto same = [](const Expected& a, const Expected& b) {
    return a.plan == b.plan && a.bytes == b.bytes && a.copies == b.copies;
  };
  return bytes == other.bytes && known == other.known && possible == other.possible &&
         plans == other.plans &&
         std::equal(next.begin(), next.end(), other.next.begin(), other.next.end(), same);
}

DecisionPtr Decisions::find(const Question& question, bool proven) const {
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const auto& one) { return one.first == question; });
  if (found == kept_.end()) return nullptr;
  return proven ? found->second.best(0) : found->second.next(0);
}

void Decisions::keep(Question question, DecisionPtr decision) {
  DivisionTrials trials(1);
  trials.decide(0, std::move(decision));
  if (kept_.size() < TransferTuning::kMostDecisions) {
    kept_.emplace_back(std::move(question), std::move(trials));
    return;
  }
  kept_[oldest_] = {std::move(question), std::move(trials)};
  oldest_ = (oldest_ + 1) % TransferTuning::kMostDecisions;
}

void Decisions::cut(const Question& question, DecisionPtr decision) {
  for (auto& [other, trials] : kept_) {
    if (other == question) return trials.cut(0, std::move(decision));
  }
}

void Decisions::saw(const DivisionPtr& division, const DivisionTimes& times) {
  for (auto& [question, trials] : kept_) {
    if (trials.next(0)->division == division) return trials.saw({times}, times.ns);
  }
}

}  // namespace glake::transfer
