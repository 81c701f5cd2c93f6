// One flat JSON object, written member by member.
#pragma once

#include <cmath>
#include <string>
#include <string_view>

#include "base/numbers.h"
#include "base/utf8.h"

namespace glake {

class JsonText {
 public:
  // Writes a space for a control character, and U+FFFD for a byte that is not valid UTF-8: names of
  // programs and of files may have any bytes, and JSON may not.
  JsonText& text(const char* key, std::string_view value) {
    std::string quoted = "\"";
    while (!value.empty()) {
      const size_t length = printable_length(value);
      if (value[0] == '"' || value[0] == '\\') quoted += '\\';
      if (length != 0) {
        quoted += value.substr(0, length);
      } else {
        quoted += static_cast<unsigned char>(value[0]) < 0x80 ? " " : "\xef\xbf\xbd";
      }
      value.remove_prefix(length == 0 ? 1 : length);
    }
    return raw(key, quoted + "\"");
  }
  JsonText& number(const char* key, double value) {
    const bool whole = value == std::floor(value) && std::fabs(value) < 9e15;
    return raw(key, whole ? fixed_text(value, 0) : significant_text(value, 6));
  }
  JsonText& flag(const char* key, bool value) { return raw(key, value ? "true" : "false"); }
  JsonText& raw(const char* key, const std::string& value) {
    all_ += (all_.empty() ? "\"" : ", \"") + std::string(key) + "\": " + value;
    return *this;
  }
  std::string done() const { return "{" + all_ + "}"; }

 private:
  std::string all_;
};

}  // namespace glake
