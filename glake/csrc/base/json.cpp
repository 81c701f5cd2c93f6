// A strict reader of JSON text.
#include "base/json.h"

#include <charconv>
#include <cstring>

#include "base/numbers.h"

namespace glake::topology {

class JsonParser {
 public:
  explicit JsonParser(const std::string& text) : text_(text) {}

  Json document() {
    Json value = parse(0);
    skip_space();
    if (at_ != text_.size()) error("text after the value");
    return value;
  }

 private:
  static constexpr int kMaxDepth = 64;

  [[noreturn]] void error(const std::string& what) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) {
      ++column;
      if (text_[i] == '\n') ++line, column = 1;
    }
    throw JsonError(std::to_string(line) + ":" + std::to_string(column) + ": " + what);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr) ++at_;
  }
  void take(char wanted) {
    skip_space();
    if (peek() != wanted || at_ == text_.size()) error(std::string("expected '") + wanted + "'");
    ++at_;
  }
  bool accept(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  bool accept_word(const char* word) {
    const size_t length = std::strlen(word);
    if (text_.compare(at_, length, word) != 0) return false;
    at_ += length;
    return true;
  }

  Json parse(int depth) {
    if (depth > kMaxDepth) error("nested too deep");
    skip_space();
    Json value;
    if (peek() == '{') {
      object(&value, depth);
    } else if (peek() == '[') {
      array(&value, depth);
    } else if (peek() == '"') {
      value.kind_ = Json::Kind::kText;
      value.text_ = string();
    } else if (accept_word("true") || accept_word("false")) {
      value.kind_ = Json::Kind::kBool;
      value.number_ = text_[at_ - 2] == 'u';
    } else if (!accept_word("null")) {
      value.kind_ = Json::Kind::kNumber;
      value.number_ = number();
    }
    return value;
  }

  void object(Json* value, int depth) {
    value->kind_ = Json::Kind::kObject;
    take('{');
    if (accept('}')) return;
    do {
      skip_space();
      std::string name = string();
      if (value->find(name) != nullptr) error("member \"" + name + "\" given twice");
      take(':');
      value->members_.emplace_back(std::move(name), parse(depth + 1));
    } while (accept(','));
    take('}');
  }

  void array(Json* value, int depth) {
    value->kind_ = Json::Kind::kArray;
    take('[');
    if (accept(']')) return;
    do {
      value->items_.push_back(parse(depth + 1));
    } while (accept(','));
    take(']');
  }

  std::string string() {
    take('"');
    std::string out;
    while (true) {
      if (at_ == text_.size() || static_cast<unsigned char>(text_[at_]) < 0x20) {
        error("unfinished string");
      }
      char c = text_[at_++];
      if (c == '"') return out;
      if (c == '\\') {
        const char* escape = std::strchr("\"\"\\\\//b\bf\fn\nr\rt\t", peek());
        // Names of nodes and platforms are plain, so \u is refused and not half understood.
        if (escape == nullptr || peek() == '\0') error("escape not supported");
        c = escape[1];
        ++at_;
      }
      out += c;
    }
  }

  double number() {
    const char* start = text_.data() + at_;
    const size_t sign = peek() == '-' ? 1 : 0;
    // Refuses "inf" and "nan", which from_chars takes.
    if (at_ + sign == text_.size() || !glake::is_digit(start[sign])) error("not a value");
    double value = 0;
    const auto read = std::from_chars(start, text_.data() + text_.size(), value);
    if (read.ec != std::errc()) error("not a number");
    at_ += static_cast<size_t>(read.ptr - start);
    return value;
  }

  const std::string& text_;
  size_t at_ = 0;
};

Json Json::parse(const std::string& text) { return JsonParser(text).document(); }

void Json::expect(Kind kind, const char* what) const {
  if (kind_ != kind) throw JsonError(std::string("expected ") + what);
}

double Json::number() const { return expect(Kind::kNumber, "a number"), number_; }
const std::string& Json::text() const { return expect(Kind::kText, "a string"), text_; }
const std::vector<Json>& Json::items() const { return expect(Kind::kArray, "a list"), items_; }
const std::vector<std::pair<std::string, Json>>& Json::members() const {
  return expect(Kind::kObject, "an object"), members_;
}

const Json* Json::find(const std::string& name) const {
  for (const auto& [known, value] : members()) {
    if (known == name) return &value;
  }
  return nullptr;
}

const Json& Json::at(const std::string& name) const {
  const Json* found = find(name);
  if (found == nullptr) throw JsonError("no member \"" + name + "\"");
  return *found;
}

}  // namespace glake::topology
