// One flat JSON object, written member by member.
#pragma once

#include <cmath>
#include <string>

#include "base/numbers.h"

namespace glake {

class JsonText {
 public:
  JsonText& text(const char* key, const std::string& value) {
    std::string quoted = "\"";
    for (char c : value) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
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
