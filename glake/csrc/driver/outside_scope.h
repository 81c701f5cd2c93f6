// Open while the thread waits for another thread outside the driver. It tells a driver with virtual
// time that the time may move meanwhile.
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
