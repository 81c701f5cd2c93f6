// Makes the calling thread's capture mode relaxed for one scope, so that no call in it invalidates
// a capture under way elsewhere, or is refused because of one.
#pragma once

#include "driver/driver.h"

namespace glake {

class RelaxedScope {
 public:
  explicit RelaxedScope(Driver& driver);
  ~RelaxedScope();
  RelaxedScope(const RelaxedScope&) = delete;
  RelaxedScope& operator=(const RelaxedScope&) = delete;
  Status status() const { return status_; }

 private:
  Driver& driver_;
  int mode_ = 0;  // the thread's before
  Status status_;
};

}  // namespace glake
