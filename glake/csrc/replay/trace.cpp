// Streaming parser of allocation traces: one pass, every field checked, every error with its line.
#include "trace.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace glake::replay {
namespace {

constexpr size_t kMaxLine = 64 * 1024;
constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();
constexpr uint64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kMaxU64 = std::numeric_limits<uint64_t>::max();

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// Foreign bytes reach a terminal through error texts, so anything unprintable is shown as '?'.
std::string quoted(std::string_view text) {
  std::string shown(text.substr(0, 40));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return "'" + shown + (text.size() > 40 ? "...'" : "'");
}

}  // namespace

TraceError::TraceError(std::string file, uint64_t line, std::string field,
                       const std::string& reason)
    : std::runtime_error(file + ":" + std::to_string(line) + ": " + field + ": " + reason),
      file_(std::move(file)),
      line_(line),
      field_(std::move(field)) {}

void TraceParser::fail(const std::string& field, const std::string& reason) const {
  throw TraceError(trace_.name, line_, field, reason);
}

void TraceParser::feed(std::string_view chunk) {
  while (!chunk.empty()) {
    const size_t end = chunk.find('\n');
    const std::string_view piece = chunk.substr(0, end);
    if (partial_.size() + piece.size() > kMaxLine) {
      fail("line", "longer than " + std::to_string(kMaxLine) + " bytes; is this a trace?");
    }
    if (end == std::string_view::npos) {
      partial_.append(piece);
      return;
    }
    if (partial_.empty()) {
      parse_line(piece);
    } else {
      partial_.append(piece);
      parse_line(partial_);
      partial_.clear();
    }
    ++line_;
    chunk.remove_prefix(end + 1);
  }
}

Trace TraceParser::finish() {
  if (!partial_.empty()) {
    parse_line(partial_);
    partial_.clear();
  }
  if (trace_.events.empty()) fail("op", "the trace ends without an event");
  trace_.end_live_bytes = live_bytes_;
  return std::move(trace_);
}

void TraceParser::parse_line(std::string_view line) {
  rest_ = trimmed(line);
  if (rest_.empty()) return;
  if (rest_.front() == '#') return parse_header(rest_);
  const std::string_view op = next_field("op");
  if (op == "a") {
    on_alloc();
  } else if (op == "f") {
    on_free();
  } else if (op == "r") {
    on_record_stream();
  } else if (op == "s") {
    on_step();
  } else {
    fail("op", "unknown operation " + quoted(op) + "; known: a, f, r, s");
  }
  if (!rest_.empty()) fail("end of line", "unexpected further field " + quoted(rest_));
}

void TraceParser::parse_header(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view key = trimmed(line.substr(1, colon - 1));
  const std::string_view value = trimmed(line.substr(colon + 1));
  trace_.header.emplace_back(std::string(key), std::string(value));
}

std::string_view TraceParser::next_field(const char* name) {
  if (rest_.empty()) fail(name, "missing field");
  size_t end = 0;
  while (end < rest_.size() && !is_blank(rest_[end])) ++end;
  const std::string_view field = rest_.substr(0, end);
  rest_ = trimmed(rest_.substr(end));
  return field;
}

uint64_t TraceParser::next_number(const char* name, uint64_t limit) {
  const std::string_view field = next_field(name);
  uint64_t number = 0;
  const char* end = field.data() + field.size();
  const auto [stop, code] = std::from_chars(field.data(), end, number);
  const bool whole = stop == end;
  if (whole &&
      (code == std::errc::result_out_of_range || (code == std::errc() && number > limit))) {
    fail(name, quoted(field) + " is above the limit of " + std::to_string(limit));
  }
  if (!whole || code != std::errc()) {
    const bool negative = field.size() > 1 && field.front() == '-';
    fail(name, quoted(field) + (negative ? " is negative" : " is not a whole number"));
  }
  return number;
}

std::unordered_map<uint64_t, TraceParser::Live>::iterator TraceParser::next_live() {
  const uint64_t id = next_number("id", kMaxU64);
  const auto found = live_.find(id);
  if (found == live_.end()) fail("id", std::to_string(id) + " is not a live block");
  return found;
}

void TraceParser::on_alloc() {
  const uint64_t id = next_number("id", kMaxU64);
  const uint64_t bytes = next_number("bytes", kMaxBytes);
  const uint64_t stream = next_number("stream", kMaxU32);
  if (bytes == 0) fail("bytes", "a block has at least one byte");
  if (live_bytes_ > kMaxBytes - bytes) fail("bytes", "more than 2^63 bytes live at once");
  uint32_t slot = trace_.slots;
  if (!free_slots_.empty()) slot = free_slots_.back();
  if (slot == kMaxU32) fail("id", "more than 2^32 blocks live at once");
  if (!live_.emplace(id, Live{slot, bytes}).second) {
    fail("id", std::to_string(id) + " is allocated already and not yet freed");
  }
  if (free_slots_.empty()) {
    ++trace_.slots;
  } else {
    free_slots_.pop_back();
  }
  trace_.events.push_back({bytes, slot, static_cast<uint32_t>(stream), Op::kAlloc});
  ++trace_.allocations;
  live_bytes_ += bytes;
  trace_.peak_live_bytes = std::max(trace_.peak_live_bytes, live_bytes_);
}

void TraceParser::on_free() {
  const auto found = next_live();
  trace_.events.push_back({found->second.bytes, found->second.slot, 0, Op::kFree});
  ++trace_.frees;
  live_bytes_ -= found->second.bytes;
  free_slots_.push_back(found->second.slot);
  live_.erase(found);
}

void TraceParser::on_record_stream() {
  const uint32_t slot = next_live()->second.slot;
  const uint64_t stream = next_number("stream", kMaxU32);
  trace_.events.push_back({0, slot, static_cast<uint32_t>(stream), Op::kRecordStream});
}

void TraceParser::on_step() {
  const uint64_t step = next_number("step", kMaxU64);
  if (stepped_ && step <= last_step_) {
    fail("step", std::to_string(step) + " does not follow step " + std::to_string(last_step_));
  }
  stepped_ = true;
  last_step_ = step;
  ++trace_.steps;
  trace_.events.push_back({step, 0, 0, Op::kStep});
}

}  // namespace glake::replay
