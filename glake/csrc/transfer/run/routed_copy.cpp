#include "transfer/run/routed_copy.h"

#include <chrono>

namespace glake::transfer {

int RoutedCopy::wait(uint64_t timeout_ns, std::string* text) {
  using Clock = std::chrono::steady_clock;
  const bool bounded = timeout_ns < UINT64_MAX / 4;
  const auto until = Clock::now() + std::chrono::nanoseconds(bounded ? timeout_ns : 0);
  RunState::Lock lock = state_.lock();
  while (!transfer_->over()) {
    if (bounded && Clock::now() >= until) {
      *text = "transfer " + std::to_string(id_) + " is not done after " +
              std::to_string(timeout_ns) + " ns";
      return GLAKE_BUSY_TIMEOUT;
    }
    if (transfer_->state == State::kWaiting) {
      order_.await(&lock, transfer_);
    } else if (bounded) {
      transfer_->changed.wait_until(lock, until);
    } else {
      transfer_->changed.wait(lock);
    }
  }
  if (transfer_->state == State::kDone) return GLAKE_OK;
  const bool failed = transfer_->state == State::kFailed;
  *text = failed ? transfer_->error_text
                 : "the transfer was cancelled: " + transfer_->destination_state();
  return failed ? transfer_->error : GLAKE_COPY_CANCELLED;
}

bool RoutedCopy::done() {
  RunState::Lock lock = state_.lock();
  const EventId passed = transfer_->state == State::kWaiting ? transfer_->passed : 0;
  const bool over = transfer_->over();
  lock.unlock();
  if (passed != 0) driver_.query(passed);  // a simulated driver's time moves by this
  return over;
}

void RoutedCopy::make_stream_wait(int device, StreamHandle stream) {
  devices_.open(device);
  order_.make_stream_wait(transfer_, device, stream);
}

void RoutedCopy::release() {
  runner_.release(id_, transfer_);
  order_.retire(transfer_);
}

void RoutedCopy::progress(Bytes* done, Bytes* total) {
  const RunState::Lock lock = state_.lock();
  *done = transfer_->landed.bytes();
  *total = transfer_->total();
}

std::string RoutedCopy::result() {
  const RunState::Lock lock = state_.lock();
  return transfer_->json(driver_.now_ns());
}

std::vector<CarriedPath> RoutedCopy::paths() {
  const RunState::Lock lock = state_.lock();
  std::vector<CarriedPath> found;
  for (const auto& run : transfer_->runs) {
    found.push_back({run->name(), run->landed, run->relayed()});
  }
  return found;
}

}  // namespace glake::transfer
