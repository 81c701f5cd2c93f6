// An allocation trace in memory and the strict parser that builds it from text chunks.
// The format is in docs/trace-format.md.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace glake::replay {

enum class Op : uint8_t { kAlloc, kFree, kRecordStream, kStep };

// `slot` numbers the live blocks densely: a freed block's slot is used again.
struct Event {
  uint64_t value = 0;  // bytes of an allocation, number of a step
  uint32_t slot = 0;
  uint32_t stream = 0;
  Op op = Op::kStep;
};

struct Trace {
  std::string name;
  std::vector<std::pair<std::string, std::string>> header;
  std::vector<Event> events;
  uint32_t slots = 0;
  uint64_t allocations = 0;
  uint64_t frees = 0;
  uint64_t steps = 0;
  uint64_t peak_live_bytes = 0;
  uint64_t end_live_bytes = 0;
};

// A line no trace may hold: which file, which line (1-based) and which field of it.
class TraceError : public std::runtime_error {
 public:
  TraceError(std::string file, uint64_t line, std::string field, const std::string& reason);
  const std::string& file() const { return file_; }
  uint64_t line() const { return line_; }
  const std::string& field() const { return field_; }

 private:
  std::string file_;
  uint64_t line_;
  std::string field_;
};

// Takes a trace's text in chunks cut anywhere. After a TraceError the parser is of no further use.
class TraceParser {
 public:
  explicit TraceParser(std::string file) { trace_.name = std::move(file); }
  void feed(std::string_view chunk);
  // The trace; throws TraceError if it holds no event.
  Trace finish();
  // The line the next error would name.
  uint64_t line() const { return line_; }

 private:
  struct Live {
    uint32_t slot;
    uint64_t bytes;
  };

  void parse_line(std::string_view line);
  void parse_header(std::string_view line);
  void on_alloc();
  void on_free();
  void on_record_stream();
  void on_step();
  std::string_view next_field(const char* name);
  uint64_t next_number(const char* name, uint64_t limit);
  std::unordered_map<uint64_t, Live>::iterator next_live();
  [[noreturn]] void fail(const std::string& field, const std::string& reason) const;

  Trace trace_;
  std::string partial_;
  std::string_view rest_;
  uint64_t line_ = 1;
  std::unordered_map<uint64_t, Live> live_;
  std::vector<uint32_t> free_slots_;
  bool stepped_ = false;
  uint64_t last_step_ = 0;
  uint64_t live_bytes_ = 0;
};

}  // namespace glake::replay
