// The engine's end.
#include <algorithm>
#include <chrono>

#include "core/process.h"
#include "transfer/engine.h"

namespace glake::transfer {
namespace {

constexpr uint64_t kHoldUp = 5'000'000'000;  // ns waited for each thing that is late

}  // namespace

void Engine::end_all() {
  std::vector<std::shared_ptr<Transfer>> all;
  {
    Lock lock(mutex_);
    for (auto& [id, transfer] : transfers_) all.push_back(transfer);
    all.insert(all.end(), running_.begin(), running_.end());
  }
  marks_.stop_waits();
  for (const auto& transfer : all) end_one(transfer);
}

void Engine::close() {
  end_all();
  shut_gates();
  marks_.close(kHoldUp);
  if (!reap_passed(kHoldUp)) {
    throw Error(GLAKE_BUSY_TIMEOUT,
                "a stream still has work before a transfer it was given; synchronise it, then "
                "close the transfer engine again");
  }
  std::string left;
  for (auto& [gpu, submitter] : submitters_) {
    const std::string one = submitter->stop();
    if (!one.empty()) left += (left.empty() ? "" : "; ") + one;
  }
  submitters_.clear();
  staging_.close();
  if (!left.empty()) {
    throw Error(GLAKE_DRIVER_ERROR, left +
                                        ". What they use stays in use until the process ends; "
                                        "closing again gives back the rest");
  }
  for (size_t i = 0; i < 2 * static_cast<size_t>(devices_); ++i) {
    const StreamHandle stream = plain_streams_[i].load();
    const auto device = static_cast<int>(i / 2);
    if (stream == 0) continue;
    Status s = driver_.synchronize_stream(device, stream);
    if (s.ok()) s = driver_.destroy_stream(stream);
    if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "a plain copy's stream: " + driver_.describe(s));
    plain_streams_[i] = 0;
  }
  guards_.clear();
  process_.set_detour(kCopied, false);
  pins_.close();
  timer_.close();
  slots_.close();
  kernel_.close();
  holds_.close();
}

// Cancels a transfer and waits for its copies under way.
void Engine::end_one(const std::shared_ptr<Transfer>& transfer) {
  Lock lock(mutex_);
  if (!transfer->over()) {
    transfer->cancelled = true;
    conclude(&lock, transfer);
  }
  transfer->changed.wait(lock, [&] { return transfer->over(); });
  if (transfer->passed != 0) passed_.push_back(std::exchange(transfer->passed, 0));
}

}  // namespace glake::transfer
