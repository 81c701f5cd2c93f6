#include "memory/stream_marks.h"

#include "base/tuning.h"

namespace glake {

const StreamMarks::Mark* StreamMarks::covering(uint64_t epoch) const {
  for (const Mark& m : marks_) {
    if (m.epoch >= epoch) return &m;
  }
  return nullptr;
}

void StreamMarks::add(const Mark& mark, std::vector<EventId>& spare) {
  if (marks_.size() >= Tuning::kMostMarks) thin(spare);
  marks_.push_back(mark);
}

// Drops every second mark of the older half, because the list would grow without end if work never
// completes. The marks that stay cover the epochs of those dropped.
void StreamMarks::thin(std::vector<EventId>& spare) {
  std::deque<Mark> kept;
  for (size_t i = 0; i < marks_.size(); ++i) {
    if (i < marks_.size() / 2 && i % 2 == 0) {
      spare.push_back(marks_[i].event);
    } else {
      kept.push_back(marks_[i]);
    }
  }
  marks_.swap(kept);
}

void StreamMarks::poll(Driver& driver, uint64_t* completed, std::vector<EventId>& spare) {
  while (!marks_.empty()) {
    if (!driver.query(marks_.front().event).ok()) break;
    *completed = marks_.front().epoch;
    spare.push_back(marks_.front().event);
    marks_.pop_front();
  }
}

void StreamMarks::drop(uint64_t epoch, std::vector<EventId>& spare) {
  while (!marks_.empty() && marks_.front().epoch <= epoch) {
    spare.push_back(marks_.front().event);
    marks_.pop_front();
  }
}

}  // namespace glake
