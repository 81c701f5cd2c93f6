// The strict, streaming parser of allocation traces. The format is in docs/trace-format.md.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace glake::replay {

enum class Op : uint8_t { kAlloc, kFree, kRecordStream, kStep };

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

// `slot` numbers the live blocks densely, the last one freed first; it is of no meaning on a step.
struct ParsedEvent {
  Op op = Op::kStep;
  uint64_t id = 0;     // of the block, or the step's number
  uint64_t bytes = 0;  // of the block: allocated, freed or recorded
  uint32_t slot = 0;
  uint32_t stream = 0;   // of an allocation or a record_stream
  std::string_view tag;  // of an allocation; valid during the call
};

// Told what a trace holds, in order.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void event(const ParsedEvent& event) = 0;
  virtual void fact(std::string_view key, std::string_view value) = 0;
};

// Takes a trace's text in chunks cut anywhere, and keeps only what is live. After a TraceError the
// parser is of no further use.
class TraceParser {
 public:
  TraceParser(std::string file, TraceSink& sink) : file_(std::move(file)), sink_(sink) {}
  void feed(std::string_view chunk);
  // The text has ended; throws TraceError if it held no allocation.
  void finish();
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
  std::string_view next_tag();
  std::unordered_map<uint64_t, Live>::iterator next_live(uint64_t& id);
  void emit(const ParsedEvent& event);
  [[noreturn]] void fail(const std::string& field, const std::string& reason) const;

  const std::string file_;
  TraceSink& sink_;
  std::string partial_;
  std::string_view rest_;
  uint64_t line_ = 1;
  std::unordered_map<uint64_t, Live> live_;
  uint32_t slots_ = 0;
  std::vector<uint32_t> free_slots_;
  bool any_event_ = false;
  bool stepped_ = false;
  uint64_t last_step_ = 0;
  uint64_t live_bytes_ = 0;
};

}  // namespace glake::replay
