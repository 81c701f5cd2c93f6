// libcusparse: it has handles only.
#include "handles.h"

#define STANDIN_LIBRARY "libcusparse"
#define STANDIN_UNSUPPORTED 10  // CUSPARSE_STATUS_NOT_SUPPORTED

namespace {
constexpr int kInvalidValue = 3;
}

STANDIN_EXPORT int cusparseCreate(standins::Handle** handle) {
  return standins::create(handle, kInvalidValue);
}
STANDIN_EXPORT int cusparseDestroy(standins::Handle* handle) { return standins::destroy(handle); }
STANDIN_EXPORT int cusparseSetStream(standins::Handle* handle, CUstream stream) {
  return standins::set_stream(handle, stream, kInvalidValue);
}
STANDIN_EXPORT int cusparseGetStream(standins::Handle* handle, CUstream* stream) {
  if (handle == nullptr || stream == nullptr) return kInvalidValue;
  *stream = handle->stream;
  return 0;
}
STANDIN_EXPORT const char* cusparseGetErrorString(int status) {
  return status == 0                     ? "success"
         : status == STANDIN_UNSUPPORTED ? "operation not supported (glake's stand-in)"
                                         : "invalid value";
}

#include "kinds.h"
#include "simcuda/runtime/standins/lists/cusparse.def"
