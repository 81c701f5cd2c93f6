// The live bytes of a trace, step by step. They are facts of the job, whatever allocator serves it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trace.h"

namespace glake::replay {

struct StepSpan {
  std::optional<uint64_t> step;  // as the trace numbers it; null: set-up, before the first step
  uint64_t first_event = 0;
  uint64_t events = 0;
  uint64_t start_live = 0;  // bytes live before its first event
  uint64_t peak_live = 0;
  uint64_t peak_event = 0;  // the first event after which `peak_live` bytes are live
};

// In order. Set-up comes first if the trace has events before its first step.
std::vector<StepSpan> step_spans(const Trace& trace);

}  // namespace glake::replay
