// Makes the calling thread's capture mode relaxed for one scope. A call in it then invalidates no
// capture under way elsewhere, and is not refused because of one.
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
  int mode_ = 0;  // the thread's mode before
  Status status_;
};

}  // namespace glake
