#include "clock.h"

#include <algorithm>
#include <chrono>

namespace simcuda {
namespace {

uint64_t wall_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

Clock::Clock(const Options& options, const SharedLinks* shared)
    : shared_(shared), threaded_(options.threaded()), epoch_ns_(wall_ns()) {
  catch_up();
}

uint64_t Clock::now_ns() const {
  if (paced()) return shared_->now_ns();
  return threaded_ ? wall_ns() - epoch_ns_ : moment_ns_;
}

void Clock::catch_up() {
  if (paced()) moment_ns_ = std::max(moment_ns_, shared_->now_ns());
}

}  // namespace simcuda
