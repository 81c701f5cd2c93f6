#include "transfer/run/health.h"

#include <algorithm>

#include "base/transfer_tuning.h"

namespace glake::transfer {
const char* path_state_name(PathState state) {
  switch (state) {
    case PathState::kHealthy:
      return "healthy";
    case PathState::kSuspect:
      return "suspect";
    default:
      return "quarantined";
  }
}

void PathHealth::suspect(const std::string& why) {
  if (state_ == PathState::kHealthy) state_ = PathState::kSuspect;
  why_ = why;
}

void PathHealth::fail(uint64_t now, const std::string& why) {
  rest_ =
      rest_ == 0 ? TransferTuning::kFirstRest : std::min(2 * rest_, TransferTuning::kLongestRest);
  until_ = now + rest_;
  state_ = PathState::kQuarantined;
  good_ = 0;
  ++failures_;
  why_ = why;
}

void PathHealth::find(uint64_t now) {
  if (--lost_ == 0) until_ = std::min(until_, now);
}

void PathHealth::succeed() {
  state_ = PathState::kHealthy;
  why_.clear();
  if (rest_ == 0 || ++good_ < TransferTuning::kGoodChunks) return;
  good_ = 0;
  rest_ = rest_ / 2 < TransferTuning::kFirstRest ? 0 : rest_ / 2;
}

}  // namespace glake::transfer
