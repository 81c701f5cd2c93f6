// The receiver of a trace's content.
#pragma once

#include <cstdint>
#include <string_view>

namespace glake::replay {

enum class Op : uint8_t { kAlloc, kFree, kRecordStream, kStep };

// `index` numbers the live blocks without gaps. The index freed last is used first. In the event of
// a step it means nothing.
struct ParsedEvent {
  Op op = Op::kStep;
  uint64_t id = 0;     // of the block, or the step's number
  uint64_t bytes = 0;  // of the block: allocated, freed or recorded
  uint32_t index = 0;
  uint32_t stream = 0;   // of an allocation or a record_stream
  std::string_view tag;  // of an allocation; valid during the call
};

// Receives what a trace holds, in order.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void event(const ParsedEvent& event) = 0;
  virtual void fact(std::string_view key, std::string_view value) = 0;
};

}  // namespace glake::replay
