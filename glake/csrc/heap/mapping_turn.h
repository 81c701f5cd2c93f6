// A thread's turn on the paths of a device that map memory. It holds the slow lock and makes the
// device's context current. Throws Error where the driver refuses the context. The hot lock is
// taken after it.
#pragma once

#include "driver/device_scope.h"
#include "heap/device.h"
#include "memory/fair_mutex.h"

namespace glake {

class MappingTurn {
 public:
  explicit MappingTurn(Device& device) : slow_(device.slow), scope_(device.driver, device.number) {
    device.require(scope_.status(), "to make its context current");
  }
  MappingTurn(const MappingTurn&) = delete;
  MappingTurn& operator=(const MappingTurn&) = delete;

 private:
  std::lock_guard<FairMutex> slow_;
  DeviceScope scope_;
};

}  // namespace glake
