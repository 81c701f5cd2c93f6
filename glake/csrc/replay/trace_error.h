// An error in a line of a trace. It names the file, the line (from 1) and the field.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace glake::replay {

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

}  // namespace glake::replay
