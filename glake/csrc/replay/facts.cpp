#include "facts.h"

namespace glake::replay {
namespace {

uint32_t exponent_of(uint64_t bytes) {
  uint32_t exponent = 0;
  while (bytes >>= 1) ++exponent;
  return exponent;
}

}  // namespace

void FigureCounter::fact(std::string_view key, std::string_view value) {
  header_.emplace_back(std::string(key), std::string(value));
}

void FigureCounter::event(const ParsedEvent& event) {
  switch (event.op) {
    case Op::kAlloc:
      on_alloc(event);
      break;
    case Op::kFree:
      ++figures_.frees;
      figures_.end_live_bytes -= event.bytes;
      --figures_.end_live_blocks;
      break;
    case Op::kRecordStream:
      ++figures_.record_streams;
      ++figures_.streams[event.stream].recorded;
      break;
    case Op::kStep:
      ++figures_.steps;
      if (!figures_.first_step) figures_.first_step = event.id;
      figures_.last_step = event.id;
      break;
  }
  ++events_;
}

void FigureCounter::on_alloc(const ParsedEvent& event) {
  TraceFigures& all = figures_;
  ++all.allocations;
  all.end_live_bytes += event.bytes;
  ++all.end_live_blocks;
  if (all.end_live_bytes > all.peak_live_bytes) {
    all.peak_live_bytes = all.end_live_bytes;
    all.peak_live_blocks = all.end_live_blocks;
    all.peak_event = events_;
    all.peak_step = all.last_step;
  }
  for (Tally* tally :
       {&all.size_classes[exponent_of(event.bytes)], &all.streams[event.stream].allocated}) {
    ++tally->count;
    tally->bytes += event.bytes;
  }
  all.tagged_allocations += event.tag.empty() ? 0 : 1;
}

}  // namespace glake::replay
