// The context that NVIDIA's libraries work in.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include "simcuda/driver/runtime.h"

namespace standins {

// Gives the calling thread a context if it has none. NVIDIA's libraries rest on the runtime, which
// makes the primary context "on the first call" of a thread (CUDA programming guide,
// Initialization). cudaFree(nullptr) is such a call. False: there is no driver.
inline bool has_context() {
  if (simcuda_current_device() >= 0) return true;
  const auto first = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "cudaFree"));
  if (first != nullptr) first(nullptr);
  return simcuda_current_device() >= 0;
}

}  // namespace standins
