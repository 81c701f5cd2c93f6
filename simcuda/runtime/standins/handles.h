// Handles of libraries whose only state is a stream: create, destroy, set the stream.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

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

// Makes a launch of a library that rests on the runtime. "If there is no primary context", the
// runtime makes one "on the first call": CUDA programming guide, Initialization. So a thread needs
// none of its own. cudaFree(nullptr) is such a call.
inline int launch_by_runtime(const char* name, CUstream stream) {
  if (simcuda_current_device() < 0) {
    const auto first = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "cudaFree"));
    if (first != nullptr) first(nullptr);
  }
  return simcuda_launch(name, stream);
}

}  // namespace standins
