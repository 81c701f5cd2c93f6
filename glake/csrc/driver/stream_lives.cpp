#include "driver/stream_lives.h"

namespace glake {

thread_local const StreamLives::Named* StreamLives::named_ = nullptr;

StreamLives& StreamLives::of_process() {
  static auto* lives = new StreamLives;  // threads may end after static objects
  return *lives;
}

StreamLives::Named::Named(StreamLives& lives, uintptr_t stream) : stream_(stream), outer_(named_) {
  named_ = this;
  if (lives.count_.load(std::memory_order_acquire) == 0) return;
  std::lock_guard<std::mutex> guard(lives.mutex_);
  const auto found = lives.lives_.find(stream);
  if (found == lives.lives_.end() || found->second != Life::kEnded) return;
  lives.lives_.erase(found);
  lives.count_.store(lives.lives_.size(), std::memory_order_release);
}

StreamLives::Named::~Named() { named_ = outer_; }

void StreamLives::may_end(uintptr_t stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  lives_[stream] = Life::kMayEnd;
  count_.store(lives_.size(), std::memory_order_release);
}

void StreamLives::ends(uintptr_t stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  lives_[stream] = Life::kEnded;
  count_.store(lives_.size(), std::memory_order_release);
}

bool StreamLives::ending(uintptr_t stream) const {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  const auto found = lives_.find(stream);
  return found != lives_.end() && found->second == Life::kMayEnd;
}

bool StreamLives::askable(uintptr_t stream) const {
  if (count_.load(std::memory_order_acquire) == 0) return true;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (lives_.find(stream) == lives_.end()) return true;
  }
  for (const Named* each = named_; each != nullptr; each = each->outer_) {
    if (each->stream_ == stream) return true;
  }
  return false;
}

}  // namespace glake
