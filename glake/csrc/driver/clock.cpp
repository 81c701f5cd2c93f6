// Time and waits with a deadline. They use the driver's own clock if it has one.
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/transfer_tuning.h"
#include "driver/calls.h"
#include "driver/relaxed_scope.h"

namespace glake {
namespace {

uint64_t steady_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// Linux may end a sleep late by the thread's timer slack. That is 50 us by default, which is longer
// than many copies take. begin() makes sleeps exact until the end of the scope. A thread that never
// sleeps does not need its system calls.
class ExactSleeps {
 public:
  ExactSleeps() = default;
  ~ExactSleeps() {
    if (slack_ > 0) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_));
  }
  ExactSleeps(const ExactSleeps&) = delete;
  ExactSleeps& operator=(const ExactSleeps&) = delete;

  void begin() {
    if (begun_) return;
    begun_ = true;
    slack_ = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1UL);
  }

 private:
  bool begun_ = false;
  int slack_ = 0;
};

// How long a thread sleeps at `now` while it waits for something; 0: not at all. Before the
// expected time it sleeps half of the time left, because the end may come earlier. After it, it
// sleeps longer the later it is.
uint64_t pause_ns(uint64_t now, const ExpectedEnd& expected) {
  if (now < expected.from_ns)
    return std::max((expected.from_ns - now) / 2, TransferTuning::kShortestSleep);
  if (now <= expected.until_ns) return 0;
  return std::clamp((now - expected.at_ns) / 4, TransferTuning::kShortestSleep,
                    TransferTuning::kLongestSleep);
}

// The expected end of something that may be over already, or whose time is a guess.
ExpectedEnd around(uint64_t at) {
  return {at, at - std::min(at, TransferTuning::kSpinNs), at + TransferTuning::kSpinNs};
}

}  // namespace

uint64_t Driver::now_ns() const {
  return table_->extras.now_ns != nullptr ? table_->extras.now_ns() : steady_ns();
}

bool Driver::polls() const {
  const driver::Extras& extras = table_->extras;
  return extras.wait_event == nullptr || (extras.polled != nullptr && extras.polled() != 0);
}

void Driver::sleep(uint64_t ns) const {
  if (table_->extras.sleep != nullptr) {
    table_->extras.sleep(ns);
  } else {
    std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
  }
}

template <class Question>
Status Driver::poll(uint64_t timeout_ns, ExpectedEnd expected, Question&& ask) const {
  Status s = ask();
  if (!s.not_ready() || timeout_ns == 0) return s;
  ExactSleeps exact;
  const uint64_t start = now_ns();
  if (expected.until_ns == 0) expected = around(std::max(start, expected.at_ns));
  for (;;) {
    const uint64_t now = now_ns();
    if (now - start >= timeout_ns) return s;
    const uint64_t pause = std::min(pause_ns(now, expected), timeout_ns - (now - start));
    if (pause != 0) {
      exact.begin();
      sleep(pause);
    }
    s = ask();
    if (!s.not_ready()) return s;
  }
}

Status Driver::wait_event(EventId event, uint64_t timeout_ns, const ExpectedEnd& expected) {
  RelaxedScope scope(*this);
  if (!scope.status().ok()) return scope.status();
  if (timeout_ns == kNoTimeout) return status(table_->cuEventSynchronize(event_of(event)));
  if (!polls()) return {table_->extras.wait_event(event_of(event), timeout_ns)};
  return poll(timeout_ns, expected, [&] { return status(table_->cuEventQuery(event_of(event))); });
}

Status Driver::wait_any(const std::vector<EventId>& events, uint64_t timeout_ns,
                        uint64_t expected_ns) {
  RelaxedScope scope(*this);
  if (!scope.status().ok()) return scope.status();
  if (!polls()) {
    std::vector<CUevent> handles;
    for (const EventId event : events) handles.push_back(event_of(event));
    return {table_->extras.wait_any(handles.data(), handles.size(), timeout_ns)};
  }
  return poll(timeout_ns, {expected_ns}, [&] {
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
