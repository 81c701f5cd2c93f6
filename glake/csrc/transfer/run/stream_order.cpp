#include "transfer/run/stream_order.h"

#include <algorithm>
#include <utility>

#include "base/transfer_tuning.h"

namespace glake::transfer {
// The driver's callback and the engine share this. Either may end first.
struct StreamOrder::Arrival {
  std::mutex mutex;
  StreamOrder* order = nullptr;  // null: the engine is closed, or the call was undone
  TransferPtr transfer;

  // The driver calls this, and no call to the driver is allowed here. Exceptions end here, because
  // otherwise the caller's stream would never go on.
  static void here(void* data) {
    std::unique_ptr<std::shared_ptr<Arrival>> arrival(static_cast<std::shared_ptr<Arrival>*>(data));
    std::lock_guard<std::mutex> guard((*arrival)->mutex);
    if ((*arrival)->order != nullptr) (*arrival)->order->arrived((*arrival)->transfer);
  }
};

// If the driver refuses a call, the stream is released, and the transfer is ended if it has begun.
bool StreamOrder::place(const TransferPtr& transfer) {
  const auto refuse = [&](const char* what, Status s) {
    transfer->gate.open();
    throw Error(GLAKE_DRIVER_ERROR, std::string(what) + ": " + driver_.describe(s));
  };
  reap(0);
  transfer->gate = gates_.take();
  EventId passed = 0;
  Status s = driver_.create_event(transfer->request.stream_device, &passed);
  if (!s.ok()) refuse("an event for the caller's stream", s);
  auto arrival = std::make_shared<Arrival>();
  arrival->order = this;
  arrival->transfer = transfer;
  s = enqueue(transfer, arrival, passed);
  if (!s.ok()) {
    undo(transfer, arrival.get(), passed);
    if (s.not_supported()) return false;
    refuse("holding the caller's stream", s);
  }
  const RunState::Lock lock = state_.lock();
  transfer->passed = passed;
  if (transfer->state == State::kWaiting) arrivals_.push_back(arrival);
  return true;
}

// Whether no work can be in front of the transfer. A stream waits for the work of the legacy
// stream, and the legacy stream for that of the others, even if it has none of its own and is
// called idle.
Status StreamOrder::nothing_before(int device, StreamHandle stream, bool* nothing) {
  constexpr StreamHandle kLegacy = 0;
  *nothing = false;
  if (stream == kLegacy) return {};
  bool idle = false, legacy_idle = false, captured = false;
  const Status s = driver_.stream_idle(device, stream, &idle);
  if (!s.ok() || !idle) return s;
  // A question whether the legacy stream is idle would end the capture of another stream. This one
  // does not, and is refused then (CUDA Driver API, cuStreamIsCapturing).
  if (!driver_.is_capturing(device, kLegacy, &captured).ok() || captured) return {};
  *nothing = driver_.stream_idle(device, kLegacy, &legacy_idle).ok() && legacy_idle;
  return {};
}

// Enqueues stream work in this order: a host function that begins the transfer (none if nothing is
// in front of it), the wait for the transfer's end, and an event behind it.
Status StreamOrder::enqueue(const TransferPtr& transfer, const std::shared_ptr<Arrival>& arrival,
                            EventId passed) {
  const int device = transfer->request.stream_device;
  const StreamHandle stream = transfer->request.stream;
  bool at_once = false;
  Status s = nothing_before(device, stream, &at_once);
  if (s.ok() && !at_once) {
    auto given = std::make_unique<std::shared_ptr<Arrival>>(arrival);
    transfer->state = State::kWaiting;
    s = driver_.host_function(device, stream, &Arrival::here, given.get());
    if (s.ok()) given.release();
  }
  if (s.ok()) s = driver_.wait_value(device, stream, transfer->gate.at(), transfer->gate.value());
  if (s.ok()) s = driver_.record(device, passed, stream);
  return s;
}

void StreamOrder::undo(const TransferPtr& transfer, Arrival* arrival, EventId passed) {
  {
    std::lock_guard<std::mutex> guard(arrival->mutex);
    arrival->order = nullptr;
  }
  transfer->gate.open();
  bool begun = false;
  {
    const RunState::Lock lock = state_.lock();
    passed_.push_back(passed);  // destroyed when the driver permits it
    begun = transfer->listed;
  }
  if (!begun) return;
  runner_.end(transfer);
  retire(transfer);
}

// It may come before place() has listed the arrival, which place() does only while the transfer
// waits. So the transfer begins first.
void StreamOrder::arrived(const TransferPtr& transfer) {
  runner_.begin(transfer);
  const RunState::Lock lock = state_.lock();
  auto mine = [&](const auto& arrival) { return arrival->transfer == transfer; };
  arrivals_.erase(std::remove_if(arrivals_.begin(), arrivals_.end(), mine), arrivals_.end());
}

void StreamOrder::make_stream_wait(const TransferPtr& transfer, int device, StreamHandle stream) {
  StreamGate gate = gates_.take();
  Status s = driver_.wait_value(device, stream, gate.at(), gate.value());
  EventId passed = 0;
  if (s.ok()) s = driver_.create_event(device, &passed);
  if (s.ok()) s = driver_.record(device, passed, stream);
  if (!s.ok()) {
    if (passed != 0) driver_.destroy_event(passed);
    throw Error(GLAKE_DRIVER_ERROR, "holding a stream: " + driver_.describe(s));
  }
  const RunState::Lock lock = state_.lock();
  passed_.push_back(passed);
  if (!transfer->over()) transfer->waiters.push_back(std::move(gate));
}

void StreamOrder::await(RunState::Lock* lock, const TransferPtr& transfer) {
  const EventId passed = transfer->passed;
  lock->unlock();
  const Status s = passed != 0 ? driver_.wait_event(passed, TransferTuning::kOrderLook) : Status{};
  lock->lock();
  if (s.ok() || s.not_ready() || transfer->state != State::kWaiting) return;
  runner_.fail(lock, transfer, GLAKE_COPY_FAILED,
               "the stream before it failed: " + driver_.describe(s));
}

void StreamOrder::retire(const TransferPtr& transfer) {
  const RunState::Lock lock = state_.lock();
  if (transfer->passed != 0) passed_.push_back(std::exchange(transfer->passed, 0));
}

size_t StreamOrder::waiting() {
  const RunState::Lock lock = state_.lock();
  return arrivals_.size();
}

void StreamOrder::shut() {
  std::vector<std::shared_ptr<Arrival>> arrivals;
  {
    const RunState::Lock lock = state_.lock();
    arrivals.swap(arrivals_);
  }
  for (const auto& arrival : arrivals) {
    {
      std::lock_guard<std::mutex> guard(arrival->mutex);
      arrival->order = nullptr;
    }
    runner_.end(arrival->transfer);
    retire(arrival->transfer);
  }
}

bool StreamOrder::reap(uint64_t timeout_ns) {
  std::vector<EventId> waiting;
  {
    const RunState::Lock lock = state_.lock();
    waiting.swap(passed_);
  }
  auto over = [&](EventId event) {
    const Status s = timeout_ns == 0 ? driver_.query(event) : driver_.wait_event(event, timeout_ns);
    return !s.not_ready() && driver_.destroy_event(event).ok();
  };
  waiting.erase(std::remove_if(waiting.begin(), waiting.end(), over), waiting.end());
  const RunState::Lock lock = state_.lock();
  passed_.insert(passed_.end(), waiting.begin(), waiting.end());
  return passed_.empty();
}

}  // namespace glake::transfer
