// libcudnn: handles and versions.
#include <cstring>

#include "handles.h"

#define STANDIN_LIBRARY "libcudnn"
#define STANDIN_UNSUPPORTED 3000  // CUDNN_STATUS_NOT_SUPPORTED

namespace {
constexpr int kBadParameter = 2000;  // CUDNN_STATUS_BAD_PARAM
constexpr int kMajor = 9, kMinor = 24, kPatch = 0;
}  // namespace

STANDIN_EXPORT size_t cudnnGetVersion() { return kMajor * 10000 + kMinor * 100 + kPatch; }
STANDIN_EXPORT size_t cudnnGetCudartVersion() { return 13000; }

// libraryPropertyType: major, minor, patch.
STANDIN_EXPORT int cudnnGetProperty(int which, int* value) {
  if (value == nullptr || which < 0 || which > 2) return kBadParameter;
  *value = which == 0 ? kMajor : which == 1 ? kMinor : kPatch;
  return 0;
}

STANDIN_EXPORT int cudnnCreate(standins::Handle** handle) {
  return standins::create(handle, kBadParameter);
}
STANDIN_EXPORT int cudnnDestroy(standins::Handle* handle) { return standins::destroy(handle); }
STANDIN_EXPORT int cudnnSetStream(standins::Handle* handle, CUstream stream) {
  return standins::set_stream(handle, stream, kBadParameter);
}
STANDIN_EXPORT int cudnnGetStream(standins::Handle* handle, CUstream* stream) {
  if (handle == nullptr || stream == nullptr) return kBadParameter;
  *stream = handle->stream;
  return 0;
}

STANDIN_EXPORT const char* cudnnGetErrorString(int status) {
  return status == 0                     ? "CUDNN_STATUS_SUCCESS"
         : status == STANDIN_UNSUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                         : "CUDNN_STATUS_BAD_PARAM";
}

STANDIN_EXPORT void cudnnGetLastErrorString(char* text, size_t capacity) {
  if (text == nullptr || capacity == 0) return;
  std::strncpy(text, "see stderr for the function that glake's stand-in has not", capacity - 1);
  text[capacity - 1] = 0;
}

#include "kinds.h"
#include "lists/cudnn.def"
