// libcusolver: it has handles only.
#include "handles.h"

#define STANDIN_LIBRARY "libcusolver"
#define STANDIN_UNSUPPORTED 9  // CUSOLVER_STATUS_NOT_SUPPORTED

namespace {
constexpr int kInvalidValue = 3;
}

STANDIN_EXPORT int cusolverDnCreate(standins::Handle** handle) {
  return standins::create(handle, kInvalidValue);
}
STANDIN_EXPORT int cusolverDnDestroy(standins::Handle* handle) { return standins::destroy(handle); }
STANDIN_EXPORT int cusolverDnSetStream(standins::Handle* handle, CUstream stream) {
  return standins::set_stream(handle, stream, kInvalidValue);
}

#include "kinds.h"
#include "simcuda/runtime/standins/lists/cusolver.def"
