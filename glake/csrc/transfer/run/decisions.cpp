#include "transfer/run/decisions.h"

#include <algorithm>
#include <utility>

namespace glake::transfer {
namespace {

constexpr size_t kMostKept = 32;  // copies both ways of each of 16 GPUs

}  // namespace

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
  if (kept_.size() < kMostKept) {
    kept_.emplace_back(std::move(question), std::move(decision));
    return;
  }
  kept_[oldest_] = {std::move(question), std::move(decision)};
  oldest_ = (oldest_ + 1) % kMostKept;
}

}  // namespace glake::transfer
