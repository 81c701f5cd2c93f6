// Kernels as the runtime knows them: registered by compiled code, or loaded from a library.
#pragma once

#include <string>

#include "cudart.h"

namespace cudart {

struct Kernel {
  const char* name = "";           // in the code that registered it, which may be unloaded
  const char* counted = nullptr;   // a copy that stays, made at the first launch
  int max_dynamic_shared = 49152;  // cudaFuncAttributeMaxDynamicSharedMemorySize
};

// The kernel of a host function that nvcc-compiled code registered; nullptr: none.
Kernel* kernel_of(const void* function);
// A kernel that nobody registered, as cudaLibraryGetKernel returns it.
Kernel* new_kernel(const std::string& name);

struct Shape {
  Dim3 grid, block;
  size_t shared = 0;
};
// Checks the launch's shape as CUDA does, and makes it work of the stream.
Error launch(Kernel* kernel, const Shape& shape, CUstream stream);
// An attribute of the current device, in CUDA's numbering; 0 if it is not known.
int attribute(CUdevice_attribute which);
int blocks_per_multiprocessor(const Kernel* kernel, int threads, size_t shared);

}  // namespace cudart
