#include "driver/relaxed_scope.h"

#include "driver/calls.h"

namespace glake {

RelaxedScope::RelaxedScope(Driver& driver) : driver_(driver) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  status_ = glake::status(driver.table_->cuThreadExchangeStreamCaptureMode(&mode));
  mode_ = static_cast<int>(mode);
}

RelaxedScope::~RelaxedScope() {
  auto mode = static_cast<CUstreamCaptureMode>(mode_);
  if (status_.ok()) driver_.table_->cuThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace glake
