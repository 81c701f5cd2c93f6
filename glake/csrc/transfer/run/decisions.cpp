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

DivisionTrials& Decisions::of(Question question) {
  for (auto& [other, trials] : kept_) {
    if (other == question) return trials;
  }
  if (kept_.size() < TransferTuning::kMostDecisions) {
    return kept_.emplace_back(std::move(question), DivisionTrials(1)).second;
  }
  auto& oldest = kept_[oldest_];
  oldest = {std::move(question), DivisionTrials(1)};
  oldest_ = (oldest_ + 1) % TransferTuning::kMostDecisions;
  return oldest.second;
}

void Decisions::saw(const DivisionPtr& division, const DivisionTimes& times) {
  for (auto& [question, trials] : kept_) {
    const DecisionPtr& next = trials.next(0);
    if (next != nullptr && next->division == division) return trials.saw({times}, times.ns);
  }
}

}  // namespace glake::transfer
