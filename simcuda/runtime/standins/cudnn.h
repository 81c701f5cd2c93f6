// Shared by the parts of libcudnn.
#pragma once

#include "handles.h"

namespace standins {

enum CudnnStatus : int {
  kSuccess = 0,
  kBadParameter = 2000,
  kNotSupported = 3000,
  kExecutionFailed = 5000,
};

inline int cudnn_launch(const char* name, const Handle* handle) {
  if (handle == nullptr) return kBadParameter;
  return launch_by_runtime(name, handle->stream) == CUDA_SUCCESS ? kSuccess : kExecutionFailed;
}

}  // namespace standins
