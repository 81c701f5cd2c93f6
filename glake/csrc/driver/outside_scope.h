// For a thread that waits for another one outside the driver: virtual time may move meanwhile.
#pragma once

#include "driver/driver.h"

namespace glake {

class OutsideScope {
 public:
  explicit OutsideScope(Driver& driver);
  ~OutsideScope();
  OutsideScope(const OutsideScope&) = delete;
  OutsideScope& operator=(const OutsideScope&) = delete;

 private:
  Driver& driver_;
};

}  // namespace glake
