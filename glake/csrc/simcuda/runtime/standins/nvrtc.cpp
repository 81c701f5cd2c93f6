// libnvrtc: no compiler. What would be compiled at run time says so.
#include "standin.h"

#define STANDIN_LIBRARY "libnvrtc"

namespace {
enum Status : int { kSuccess = 0, kInvalidInput = 3, kBuiltinOperationFailure = 7 };
}
#define STANDIN_UNSUPPORTED kBuiltinOperationFailure  // NVRTC has no "not supported"

STANDIN_EXPORT int nvrtcVersion(int* major, int* minor) {
  if (major == nullptr || minor == nullptr) return kInvalidInput;
  *major = 13;
  *minor = 0;
  return kSuccess;
}

STANDIN_EXPORT const char* nvrtcGetErrorString(int status) {
  return status == kSuccess ? "NVRTC_SUCCESS"
                            : "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE (glake's stand-in compiles "
                              "nothing: docs/real.md)";
}

#include "kinds.h"
#include "lists/nvrtc.def"
