// An allocation trace in memory, and what can be computed from it without an allocator. The format
// is in docs/trace-format.md; trace_parser.h reads it.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trace_parser.h"

namespace glake::replay {

// `index` numbers the live blocks without gaps: a freed block's index is used again. `tag` is an
// index of Trace::tags, for allocations and frees.
struct Event {
  uint64_t value = 0;  // bytes of an allocation or free, number of a step
  uint32_t index = 0;
  uint32_t stream = 0;
  Op op = Op::kStep;
  uint32_t tag = 0;
};

// What the live blocks of one tag add up to.
struct Holder {
  uint32_t tag = 0;
  uint64_t bytes = 0;
  uint64_t blocks = 0;
};

struct Trace {
  std::string name;
  std::vector<std::pair<std::string, std::string>> header;
  std::vector<Event> events;
  std::vector<std::string> tags{""};  // tag 0: no tag was given
  uint32_t indices = 0;
  uint64_t allocations = 0;
  uint64_t frees = 0;
  uint64_t steps = 0;
  uint64_t peak_live_bytes = 0;
  uint64_t peak_live_event = 0;  // the first event after which these bytes are live
  uint64_t end_live_bytes = 0;

  // What each tag holds after the first `events` events. The tag that holds most comes first.
  std::vector<Holder> holders_after(uint64_t events) const;
  // The same for the blocks that outlive their step. They were allocated before the present step
  // began, or they are not freed before the next step begins or the trace ends.
  std::vector<Holder> lasting_after(uint64_t events) const;
  // Cuts the events into at most `points` equal runs. Returns each run's first event and most live
  // bytes.
  std::vector<std::pair<uint64_t, uint64_t>> live_timeline(size_t points) const;
  // How many allocations asked for each size, the smallest size first.
  std::vector<std::pair<uint64_t, uint64_t>> sizes() const;
};

// Collects what a TraceParser reads.
class TraceBuilder : public TraceSink {
 public:
  explicit TraceBuilder(std::string name) { trace_.name = std::move(name); }
  void event(const ParsedEvent& event) override;
  void fact(std::string_view key, std::string_view value) override;
  Trace take() { return std::move(trace_); }

 private:
  uint32_t tag_number(std::string_view tag);

  Trace trace_;
  std::unordered_map<std::string, uint32_t> tag_numbers_{{"", 0}};
  std::vector<uint32_t> tag_of_index_;
};

}  // namespace glake::replay
