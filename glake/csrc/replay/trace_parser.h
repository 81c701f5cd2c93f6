// The strict, streaming parser of allocation traces. The format is in docs/trace-format.md.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trace_error.h"
#include "trace_sink.h"

namespace glake::replay {

// Takes a trace's text in pieces cut anywhere, and keeps only what is live. After a TraceError the
// parser cannot be used any more.
class TraceParser {
 public:
  TraceParser(std::string file, TraceSink& sink) : file_(std::move(file)), sink_(sink) {}
  void feed(std::string_view chunk);
  // Says that the text has ended. Throws TraceError if it held no allocation.
  void finish();
  // The line that an error would name now.
  uint64_t line() const { return line_; }

 private:
  struct Live {
    uint32_t index;
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
  bool unended_ = false;  // the line in hand is the last, and no line break follows it
  std::unordered_map<uint64_t, Live> live_;
  uint32_t most_live_ = 0;
  std::vector<uint32_t> free_indices_;
  bool any_event_ = false;
  bool stepped_ = false;
  uint64_t last_step_ = 0;
  uint64_t live_bytes_ = 0;
};

}  // namespace glake::replay
