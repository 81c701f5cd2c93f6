#include "transfer/run/decisions.h"

#include <algorithm>
#include <utility>

#include "base/transfer_tuning.h"

namespace glake::transfer {
bool Decisions::Question::operator==(const Question& other) const {
  const auto same = [](const Expected& a, const Expected& b) {
    return a.plan == b.plan && a.bytes == b.bytes;
  };
  return bytes == other.bytes && known == other.known && possible == other.possible &&
         plans == other.plans &&
         std::equal(next.begin(), next.end(), other.next.begin(), other.next.end(), same);
}

DecisionPtr Decisions::find(const Question& question) const {
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const auto& one) { return one.first == question; });
  return found != kept_.end() ? found->second : nullptr;
}

void Decisions::keep(Question question, DecisionPtr decision) {
  if (kept_.size() < TransferTuning::kMostDecisions) {
    kept_.emplace_back(std::move(question), std::move(decision));
    return;
  }
  kept_[oldest_] = {std::move(question), std::move(decision)};
  oldest_ = (oldest_ + 1) % TransferTuning::kMostDecisions;
}

}  // namespace glake::transfer
