#include "trace_error.h"

namespace glake::replay {

TraceError::TraceError(std::string file, uint64_t line, std::string field,
                       const std::string& reason)
    : std::runtime_error(file + ":" + std::to_string(line) + ": " + field + ": " + reason),
      file_(std::move(file)),
      line_(line),
      field_(std::move(field)) {}

}  // namespace glake::replay
