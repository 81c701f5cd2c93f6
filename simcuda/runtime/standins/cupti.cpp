// libcupti: there is nothing to profile.
#include "standin.h"

#define STANDIN_LIBRARY "libcupti"

namespace {
enum Status : int { kSuccess = 0, kInvalidParameter = 1, kNotSupported = 27 };
}
#define STANDIN_UNSUPPORTED kNotSupported

STANDIN_EXPORT int cuptiGetVersion(uint32_t* version) {
  if (version == nullptr) return kInvalidParameter;
  *version = 130000;
  return kSuccess;
}

STANDIN_EXPORT int cuptiGetResultString(int status, const char** text) {
  if (text == nullptr) return kInvalidParameter;
  *text = status == kSuccess ? "CUPTI_SUCCESS" : "CUPTI_ERROR_NOT_SUPPORTED (glake's stand-in)";
  return kSuccess;
}

#include "kinds.h"
#include "simcuda/runtime/standins/lists/cupti.def"
