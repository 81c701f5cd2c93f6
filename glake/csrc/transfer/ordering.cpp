// How a transfer takes its place in a caller's stream: it begins when the stream comes to it, and
// the stream goes on when it is done. The call itself returns at once.
#include <algorithm>

#include "transfer/engine.h"
#include "transfer/plain.h"

namespace glake::transfer {
namespace {

constexpr uint64_t kLook = 2'000'000;  // ns

}  // namespace

// What the driver's callback thread is given. Either side may end first.
struct Engine::Gate {
  std::mutex mutex;
  Engine* engine = nullptr;  // null: the engine is closed, or the call was undone
  std::shared_ptr<Transfer> transfer;

  // Called by the driver, where no call to it is allowed. Exceptions end here: the caller's stream
  // would never go on.
  static void open(void* data) {
    std::unique_ptr<std::shared_ptr<Gate>> gate(static_cast<std::shared_ptr<Gate>*>(data));
    std::lock_guard<std::mutex> guard((*gate)->mutex);
    if ((*gate)->engine != nullptr) (*gate)->engine->open_gate((*gate)->transfer);
  }
};

// Stream work in order: a host function that lets the transfer begin (none if the stream is idle),
// the wait for its end, an event behind it. If a call is refused the stream is let go, and the
// transfer, which may have begun, has ended. False: the driver cannot have a stream wait.
bool Engine::order(const std::shared_ptr<Transfer>& transfer) {
  const Request& request = transfer->request;
  const int device = request.stream_device;
  auto refuse = [&](const char* what, Status s) {
    transfer->hold.let_go();
    throw Error(GLAKE_DRIVER_ERROR, std::string(what) + ": " + driver_.describe(s));
  };
  reap_passed(0);
  transfer->hold = holds_.take();
  EventId passed = 0;
  Status s = driver_.create_event(device, &passed);
  if (!s.ok()) refuse("an event for the caller's stream", s);
  bool idle = false;
  s = driver_.stream_idle(device, request.stream, &idle);
  auto gate = std::make_shared<Gate>();
  gate->engine = this;
  gate->transfer = transfer;
  if (s.ok() && !idle) {
    auto given = std::make_unique<std::shared_ptr<Gate>>(gate);
    transfer->state = State::kWaiting;
    s = driver_.host_function(device, request.stream, &Gate::open, given.get());
    if (s.ok()) given.release();
  }
  if (s.ok()) {
    s = driver_.wait_value(device, request.stream, transfer->hold.at(), transfer->hold.value());
  }
  if (s.ok()) s = driver_.record(device, passed, request.stream);
  if (!s.ok()) {
    {
      std::lock_guard<std::mutex> guard(gate->mutex);
      gate->engine = nullptr;
    }
    transfer->hold.let_go();
    bool begun = false;
    {
      Lock lock(mutex_);
      passed_.push_back(passed);  // destroyed when the driver takes it
      begun = transfer->listed;
    }
    if (begun) end_one(transfer);
    if (s.not_supported()) return false;
    refuse("holding the caller's stream", s);
  }
  Lock lock(mutex_);
  transfer->passed = passed;
  if (transfer->state == State::kWaiting) gates_.push_back(gate);
  return true;
}

void Engine::open_gate(const std::shared_ptr<Transfer>& transfer) {
  {
    Lock lock(mutex_);
    auto mine = [&](const std::shared_ptr<Gate>& gate) { return gate->transfer == transfer; };
    gates_.erase(std::remove_if(gates_.begin(), gates_.end(), mine), gates_.end());
    if (transfer->over()) return;
    transfer->state = State::kRunning;
    transfer->listed = true;
    running_.push_back(transfer);
    transfer->changed.notify_all();
  }
  replan();
}

// Streams that have not come to their transfer yet find nobody here when they do.
void Engine::shut_gates() {
  std::vector<std::shared_ptr<Gate>> gates;
  {
    Lock lock(mutex_);
    gates.swap(gates_);
  }
  for (const auto& gate : gates) {
    {
      std::lock_guard<std::mutex> guard(gate->mutex);
      gate->engine = nullptr;
    }
    end_one(gate->transfer);
  }
}

// True: no stream has still to come past a hold.
bool Engine::reap_passed(uint64_t timeout_ns) {
  std::vector<EventId> waiting;
  {
    Lock lock(mutex_);
    waiting.swap(passed_);
  }
  auto over = [&](EventId event) {
    const Status s = timeout_ns == 0 ? driver_.query(event) : driver_.wait_event(event, timeout_ns);
    return !s.not_ready() && driver_.destroy_event(event).ok();
  };
  waiting.erase(std::remove_if(waiting.begin(), waiting.end(), over), waiting.end());
  Lock lock(mutex_);
  passed_.insert(passed_.end(), waiting.begin(), waiting.end());
  return passed_.empty();
}

// Drives a simulated driver's time while nobody else does: a transfer that waits for a stream. A
// stream that the driver says has failed never comes to it.
void Engine::await_gate(Lock* lock, const std::shared_ptr<Transfer>& transfer) {
  const EventId passed = transfer->passed;
  lock->unlock();
  const Status s = passed != 0 ? driver_.wait_event(passed, kLook) : Status{};
  lock->lock();
  if (s.ok() || s.not_ready() || transfer->state != State::kWaiting) return;
  transfer->fail(GLAKE_COPY_FAILED, "the stream before it failed: " + driver_.describe(s));
  conclude(lock, transfer);
}

void Engine::stream_wait(uint64_t id, int device, StreamHandle stream) {
  if (device < 0 || device >= devices_) {
    throw Error(GLAKE_INVALID_DEVICE, "no " + device_text(device) + " for the stream");
  }
  if (PlainId(id).valid()) {
    open_device(device);
    return follow(device, stream, PlainId(id).device(), PlainId(id).stream());
  }
  if (Marks::is(id)) {
    open_device(device);
    return marks_.hold_stream(id, device, stream);
  }
  const std::shared_ptr<Transfer> transfer = find(id);
  open_device(device);
  Hold hold = holds_.take();
  Status s = driver_.wait_value(device, stream, hold.at(), hold.value());
  EventId passed = 0;
  if (s.ok()) s = driver_.create_event(device, &passed);
  if (s.ok()) s = driver_.record(device, passed, stream);
  if (!s.ok()) {
    if (passed != 0) driver_.destroy_event(passed);
    throw Error(GLAKE_DRIVER_ERROR, "holding a stream: " + driver_.describe(s));
  }
  Lock lock(mutex_);
  passed_.push_back(passed);
  if (!transfer->over()) transfer->waiters.push_back(std::move(hold));
}

}  // namespace glake::transfer
