// A strict reader of JSON text. It reads what platform and cost files need.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace glake::topology {

// The text says what is wrong and where (line:column, or the member's name).
struct JsonError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Json {
 public:
  static Json parse(const std::string& text);  // throws JsonError

  // Each throws JsonError if the value is of another kind. `at` also throws if there is no such
  // member.
  double number() const;
  const std::string& text() const;
  const std::vector<Json>& items() const;
  const std::vector<std::pair<std::string, Json>>& members() const;
  const Json& at(const std::string& name) const;
  const Json* find(const std::string& name) const;

 private:
  friend class JsonParser;
  enum class Kind { kNull, kBool, kNumber, kText, kArray, kObject };
  void expect(Kind kind, const char* what) const;

  Kind kind_ = Kind::kNull;
  double number_ = 0;
  std::string text_;
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

}  // namespace glake::topology
