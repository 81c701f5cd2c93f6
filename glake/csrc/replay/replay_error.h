// An error after which a replay cannot go on.
#pragma once

#include <stdexcept>

namespace glake::replay {

class ReplayError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace glake::replay
