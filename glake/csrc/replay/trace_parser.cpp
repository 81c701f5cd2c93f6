// Streaming parser of allocation traces: one pass, every field checked, every error with its line.
#include "trace_parser.h"

#include <charconv>
#include <limits>

#include "base/utf8.h"

namespace glake::replay {
namespace {

constexpr size_t kMaxLine = 64 * 1024;
constexpr size_t kMaxTag = 1024;
constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();
constexpr uint64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kMaxU64 = std::numeric_limits<uint64_t>::max();

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// Foreign bytes get to a terminal in error texts, so unprintable ones are shown as '?'.
std::string quoted(std::string_view text) {
  std::string shown(text.substr(0, 40));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return "'" + shown + (text.size() > 40 ? "...'" : "'");
}

}  // namespace

void TraceParser::fail(const std::string& field, const std::string& reason) const {
  throw TraceError(file_, line_, field,
                   unended_ ? reason +
                                  "; the file ends in this line without a line break, as a "
                                  "recording does that was killed: delete the line to use the rest"
                            : reason);
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

void TraceParser::finish() {
  if (!partial_.empty()) {
    unended_ = true;
    parse_line(partial_);
    unended_ = false;
    partial_.clear();
  }
  if (!any_event_) fail("op", "the trace ends without an event");
  if (most_live_ == 0) fail("op", "the trace ends without an allocation");
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
}

void TraceParser::parse_header(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  sink_.fact(trimmed(line.substr(1, colon - 1)), trimmed(line.substr(colon + 1)));
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

std::string_view TraceParser::next_tag() {
  const std::string_view tag = next_field("tag");
  if (tag.size() > kMaxTag) {
    fail("tag", "longer than " + std::to_string(kMaxTag) + " bytes: " + quoted(tag));
  }
  for (std::string_view rest = tag; !rest.empty();) {
    const size_t length = printable_length(rest);
    if (length == 0) fail("tag", quoted(tag) + " is not printable UTF-8");
    rest.remove_prefix(length);
  }
  return tag;
}

std::unordered_map<uint64_t, TraceParser::Live>::iterator TraceParser::next_live(uint64_t& id) {
  id = next_number("id", kMaxU64);
  const auto found = live_.find(id);
  if (found == live_.end()) fail("id", std::to_string(id) + " is not a live block");
  return found;
}

// Passes the event on, if no further field follows.
void TraceParser::emit(const ParsedEvent& event) {
  if (!rest_.empty()) fail("end of line", "unexpected further field " + quoted(rest_));
  any_event_ = true;
  sink_.event(event);
}

void TraceParser::on_alloc() {
  const uint64_t id = next_number("id", kMaxU64);
  const uint64_t bytes = next_number("bytes", kMaxBytes);
  const uint64_t stream = next_number("stream", kMaxU32);
  if (bytes == 0) fail("bytes", "a block has at least one byte");
  if (live_bytes_ > kMaxBytes - bytes) fail("bytes", "more than 2^63 bytes live at once");
  const std::string_view tag = rest_.empty() ? std::string_view() : next_tag();
  const uint32_t index = free_indices_.empty() ? most_live_ : free_indices_.back();
  if (index == kMaxU32) fail("id", "more than 2^32 blocks live at once");
  if (!live_.emplace(id, Live{index, bytes}).second) {
    fail("id", std::to_string(id) + " is allocated already and not yet freed");
  }
  if (free_indices_.empty()) {
    ++most_live_;
  } else {
    free_indices_.pop_back();
  }
  live_bytes_ += bytes;
  emit({Op::kAlloc, id, bytes, index, static_cast<uint32_t>(stream), tag});
}

void TraceParser::on_free() {
  uint64_t id = 0;
  const auto found = next_live(id);
  const Live block = found->second;
  live_bytes_ -= block.bytes;
  free_indices_.push_back(block.index);
  live_.erase(found);
  emit({Op::kFree, id, block.bytes, block.index, 0, {}});
}

void TraceParser::on_record_stream() {
  uint64_t id = 0;
  const Live block = next_live(id)->second;
  const uint64_t stream = next_number("stream", kMaxU32);
  emit({Op::kRecordStream, id, block.bytes, block.index, static_cast<uint32_t>(stream), {}});
}

void TraceParser::on_step() {
  const uint64_t step = next_number("step", kMaxU64);
  if (stepped_ && step <= last_step_) {
    fail("step", std::to_string(step) + " does not follow step " + std::to_string(last_step_));
  }
  stepped_ = true;
  last_step_ = step;
  emit({Op::kStep, step, 0, 0, 0, {}});
}

}  // namespace glake::replay
