// Handles of libraries whose only state is a stream: create, destroy, set the stream.
#pragma once

#include <cuda.h>

#include "context.h"
#include "standin.h"

namespace standins {

inline int create(Handle** handle, int bad) {
  if (handle == nullptr) return bad;
  *handle = new Handle;
  return 0;
}

inline int destroy(Handle* handle) {
  delete handle;
  return 0;
}

inline int set_stream(Handle* handle, CUstream stream, int bad) {
  if (handle == nullptr) return bad;
  handle->stream = stream;
  return 0;
}

// A launch of a library. The thread may have no context yet.
inline int launch_by_runtime(const char* name, CUstream stream) {
  has_context();
  return simcuda_launch(name, stream);
}

}  // namespace standins
