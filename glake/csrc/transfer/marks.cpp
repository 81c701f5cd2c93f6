#include "transfer/marks.h"

#include <algorithm>

namespace glake::transfer {
namespace {

constexpr uint64_t kSlice = 50'000'000;  // ns between looks at whether to go on waiting

std::atomic<uint64_t> next_number{1};  // never the same twice, whichever engine it was of

}  // namespace

Marks::MarkPtr Marks::make(int device) {
  EventId event = 0;
  const Status s = driver_.create_event(device, &event);
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "an event for a copy: " + driver_.describe(s));
  return std::make_shared<Mark>(driver_, event, device);
}

uint64_t Marks::put(MarkPtr mark, StreamHandle stream, Bytes bytes, const char* why) {
  Status s = driver_.record(mark->device_, mark->event_, stream);
  // The copy is enqueued already: without its event it is waited for here.
  if (!s.ok()) {
    s = driver_.synchronize_stream(mark->device_, stream);
    if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "marking a copy: " + driver_.describe(s));
    mark->done_ = true;
  }
  mark->bytes_ = bytes;
  mark->why_ = why;
  const uint64_t id = uint64_t{1} << kShift | next_number.fetch_add(1);
  std::lock_guard<std::mutex> guard(mutex_);
  marks_.emplace(id, std::move(mark));
  return id;
}

Marks::MarkPtr Marks::find(uint64_t id) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = marks_.find(id);
  if (found != marks_.end()) return found->second;
  throw Error(GLAKE_INVALID_ARGUMENT,
              "no copy has the id " + std::to_string(id) + "; it may have been released");
}

int Marks::wait(uint64_t id, uint64_t timeout_ns, std::string* text) {
  const MarkPtr mark = find(id);
  const uint64_t begin = driver_.now_ns();
  while (!mark->done_) {
    const uint64_t passed = driver_.now_ns() - begin;
    if (passed >= timeout_ns) {
      *text = "the copy is not done after " + std::to_string(timeout_ns) + " ns";
      return GLAKE_BUSY_TIMEOUT;
    }
    if (stopped_) {
      *text = "the transfer engine was closed; the copy goes on, as its stream does";
      return GLAKE_TRANSFER_CLOSED;
    }
    const Status s = driver_.wait_event(mark->event_, std::min(kSlice, timeout_ns - passed));
    if (s.not_ready()) continue;
    if (!s.ok()) {
      *text = "waiting for a plain copy, whose destination may or may not be written: " +
              driver_.describe(s);
      return GLAKE_DRIVER_ERROR;
    }
    mark->done_ = true;
  }
  return GLAKE_OK;
}

bool Marks::done(Mark& mark) {
  if (!mark.done_ && !driver_.query(mark.event_).not_ready()) mark.done_ = true;
  return mark.done_;
}

void Marks::hold_stream(uint64_t id, int device, StreamHandle stream) {
  const MarkPtr mark = find(id);
  if (mark->done_) return;
  const Status s = driver_.wait_stream(device, stream, mark->event_);
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "holding a stream: " + driver_.describe(s));
}

void Marks::close(uint64_t most_ns) {
  stopped_ = false;  // nobody waits any more
  for (;;) {
    MarkPtr mark;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (marks_.empty()) return;
      mark = marks_.begin()->second;
    }
    if (!mark->done_ && driver_.wait_event(mark->event_, most_ns).not_ready()) {
      throw Error(GLAKE_BUSY_TIMEOUT,
                  "a stream still has work before a plain copy it was given; synchronise it, then "
                  "close the transfer engine again");
    }
    std::lock_guard<std::mutex> guard(mutex_);
    marks_.erase(std::find_if(marks_.begin(), marks_.end(),
                              [&](const auto& one) { return one.second == mark; }));
  }
}

void Marks::release(uint64_t id) {
  MarkPtr last;  // its event is destroyed outside the lock
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = marks_.find(id);
  if (found == marks_.end()) return;
  last = std::move(found->second);
  marks_.erase(found);
}

}  // namespace glake::transfer
