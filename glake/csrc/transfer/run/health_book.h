// The health of each path, by the path's name. What of() returns stays valid as long as the book.
#pragma once

#include <map>
#include <string>

#include "transfer/run/health.h"

namespace glake::transfer {

class HealthBook {
 public:
  PathHealth& of(const std::string& path) { return book_[path]; }
  const std::map<std::string, PathHealth>& all() const { return book_; }

 private:
  std::map<std::string, PathHealth> book_;
};

}  // namespace glake::transfer
