#include "steps.h"

namespace glake::replay {

std::vector<StepSpan> step_spans(const Trace& trace) {
  std::vector<StepSpan> spans;
  uint64_t live = 0;
  uint64_t index = 0;
  for (const Event& event : trace.events) {
    if (event.op == Op::kStep) {
      spans.push_back({event.value, index, 0, live, live, index});
    } else if (spans.empty()) {
      spans.push_back({std::nullopt, 0, 0, 0, 0, 0});
    }
    if (event.op == Op::kAlloc) live += event.value;
    if (event.op == Op::kFree) live -= event.value;
    StepSpan& span = spans.back();
    ++span.events;
    if (live > span.peak_live) {
      span.peak_live = live;
      span.peak_event = index;
    }
    ++index;
  }
  return spans;
}

}  // namespace glake::replay
