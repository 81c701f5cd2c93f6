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
  if (found != lives.lives_.end() && found->second.life == Life::kEnded) lives.unsay(found);
}

StreamLives::Named::~Named() { named_ = outer_; }

void StreamLives::say(uintptr_t stream, Life life) {
  lives_[stream] = {life, 0};
  count_.store(lives_.size(), std::memory_order_release);
}

void StreamLives::unsay(std::unordered_map<uintptr_t, Said>::iterator said) {
  lives_.erase(said);
  count_.store(lives_.size(), std::memory_order_release);
}

void StreamLives::may_end(uintptr_t stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  say(stream, Life::kMayEnd);
}

void StreamLives::ends(uintptr_t stream) {
  std::lock_guard<std::mutex> guard(mutex_);
  say(stream, Life::kEnded);
}

void StreamLives::seen(uintptr_t stream, uint64_t number) {
  if (number == 0) return;
  std::lock_guard<std::mutex> guard(mutex_);
  const auto found = lives_.find(stream);
  if (found == lives_.end()) return;
  if (found->second.number == 0) found->second.number = number;
  if (found->second.number != number) unsay(found);
}

bool StreamLives::ending(uintptr_t stream) const {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  const auto found = lives_.find(stream);
  return found != lives_.end() && found->second.life == Life::kMayEnd;
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
