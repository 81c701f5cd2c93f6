#include "transfer/run/health.h"

#include <algorithm>

namespace glake::transfer {
namespace {

constexpr uint64_t kFirstRest = 2'000'000, kLongestRest = 10'000'000'000;  // ns
constexpr uint64_t kGoodChunks = 64;  // in a row, that halve the next rest

}  // namespace

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
  rest_ = rest_ == 0 ? kFirstRest : std::min(2 * rest_, kLongestRest);
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
  if (rest_ == 0 || ++good_ < kGoodChunks) return;
  good_ = 0;
  rest_ = rest_ / 2 < kFirstRest ? 0 : rest_ / 2;
}

}  // namespace glake::transfer
