// What no replay can go on from.
#pragma once

#include <stdexcept>

namespace glake::replay {

class ReplayError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace glake::replay
