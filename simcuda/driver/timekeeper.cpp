#include "timekeeper.h"

#include <algorithm>

namespace simcuda {
namespace {

// The longest and the shortest real time between two looks. A look finds words that the host has
// written. It also finds copies of other processes that have ended and left more of a link to this
// process.
constexpr std::chrono::nanoseconds kPacedLook{5'000'000}, kPacedShortest{20'000};

}  // namespace

Timekeeper::Timekeeper(std::mutex* mutex, const SharedLinks* shared, const PendingWork* pending,
                       const Turns* turns, const Flows* flows, Timeline* timeline)
    : mutex_(mutex),
      shared_(shared),
      pending_(pending),
      turns_(turns),
      flows_(flows),
      timeline_(timeline),
      thread_([this] { keep_time(); }) {}

// The real time until the next look.
std::chrono::nanoseconds Timekeeper::rest() const {
  const uint64_t now = shared_->now_ns();
  const uint64_t next = std::min(turns_->next_deadline(), flows_->next_look());
  if (next <= now) return kPacedShortest;
  if (next - now > 1'000'000'000) return kPacedLook;
  return std::clamp(std::chrono::nanoseconds(shared_->real_ns(next - now)), kPacedShortest,
                    kPacedLook);
}

void Timekeeper::keep_time() {
  Lock lock(*mutex_);
  while (!stopping_) {
    timeline_->advance(&lock);
    const auto idle = [&] { return pending_->size() == 0 && !turns_->anybody_waits(); };
    if (idle()) {
      work_.wait(lock, [&] { return stopping_ || !idle(); });
    } else {
      work_.wait_for(lock, rest());
    }
  }
}

void Timekeeper::stop() {
  {
    const Lock lock(*mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  thread_.join();
}

}  // namespace simcuda
