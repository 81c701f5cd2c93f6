// Makes a device's primary context current for one scope, because a thread may have no context or
// another one. It also relaxes the thread's capture mode (relaxed_scope.h).
#pragma once

#include "driver/driver.h"
#include "driver/relaxed_scope.h"

namespace glake {

class DeviceScope {
 public:
  DeviceScope(Driver& driver, int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  Status status() const { return status_; }

 private:
  Driver& driver_;
  RelaxedScope relaxed_;
  Status status_;
  bool pushed_ = false;
};

}  // namespace glake
