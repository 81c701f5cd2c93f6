// Time and waiting with a deadline, on a driver's own clock where it keeps one.
#include <algorithm>
#include <chrono>
#include <thread>

#include "driver/calls.h"

namespace glake {
namespace {

// Between two queries of an event. The first ones are close, as most waits are for work nearly
// done.
constexpr std::chrono::microseconds kFirstSleep{10}, kLastSleep{50};

uint64_t steady_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

template <class Question>
Status poll(uint64_t timeout_ns, Question&& ask) {
  const uint64_t start = steady_ns();
  auto sleep = kFirstSleep;
  for (;;) {
    Status s = ask();
    if (!s.not_ready() || steady_ns() - start >= timeout_ns) return s;
    std::this_thread::sleep_for(sleep);
    sleep = std::min(2 * sleep, kLastSleep);
  }
}

}  // namespace

uint64_t Driver::now_ns() const {
  return table_->extras.now_ns != nullptr ? table_->extras.now_ns() : steady_ns();
}

Status Driver::wait_event(EventId event, uint64_t timeout_ns) {
  RelaxedScope scope(*this);
  if (!scope.status().ok()) return scope.status();
  if (timeout_ns == kNoTimeout) return status(table_->cuEventSynchronize(event_of(event)));
  if (table_->extras.wait_event != nullptr) {
    return {table_->extras.wait_event(event_of(event), timeout_ns)};
  }
  return poll(timeout_ns, [&] { return status(table_->cuEventQuery(event_of(event))); });
}

Status Driver::wait_any(const std::vector<EventId>& events, uint64_t timeout_ns) {
  RelaxedScope scope(*this);
  if (!scope.status().ok()) return scope.status();
  if (table_->extras.wait_any != nullptr) {
    std::vector<CUevent> handles;
    for (const EventId event : events) handles.push_back(event_of(event));
    return {table_->extras.wait_any(handles.data(), handles.size(), timeout_ns)};
  }
  return poll(timeout_ns, [&] {
    Status s{CUDA_ERROR_NOT_READY};
    for (size_t i = 0; i < events.size() && s.not_ready(); ++i) {
      s = status(table_->cuEventQuery(event_of(events[i])));
    }
    return s;
  });
}

void Driver::expect_threads(int count) {
  if (table_->extras.expect != nullptr) table_->extras.expect(count);
}

void Driver::thread_at_work(bool at_work, int rank) {
  if (table_->extras.thread != nullptr) table_->extras.thread(at_work ? 1 : 0, rank);
}

}  // namespace glake
