#include "driver/device_scope.h"

#include "driver/calls.h"

namespace glake {

DeviceScope::DeviceScope(Driver& driver, int device)
    : driver_(driver), relaxed_(driver), status_(relaxed_.status()) {
  if (!status_.ok()) return;
  auto wanted = static_cast<CUcontext>(driver.contexts_[static_cast<size_t>(device)]);
  CUcontext current = nullptr;
  status_ = glake::status(driver.table_->cuCtxGetCurrent(&current));
  if (!status_.ok() || current == wanted) return;
  status_ = glake::status(driver.table_->cuCtxPushCurrent(wanted));
  pushed_ = status_.ok();
}

DeviceScope::~DeviceScope() {
  CUcontext popped = nullptr;
  if (pushed_) driver_.table_->cuCtxPopCurrent(&popped);
}

}  // namespace glake
