// The kernel glake_copy_blocks, launched on any driver, the simulator included.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>

#include "../../glake/csrc/transfer/run/kernels/copy_blocks.h"
#include "transfer/run/kernels/copy_blocks_ptx.h"

namespace kernels {

using glake::transfer::CopyBlock;

class BlockKernel {
 public:
  // Loads the kernel, and returns the driver's status. Needs a current context.
  CUresult open(const char* library) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return CUDA_ERROR_NOT_FOUND;
    const auto load =
        reinterpret_cast<decltype(&::cuModuleLoadData)>(dlsym(handle, "cuModuleLoadData"));
    const auto function =
        reinterpret_cast<decltype(&::cuModuleGetFunction)>(dlsym(handle, "cuModuleGetFunction"));
    launch_ = reinterpret_cast<decltype(&::cuLaunchKernel)>(dlsym(handle, "cuLaunchKernel"));
    if (load == nullptr || function == nullptr || launch_ == nullptr) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUmodule module = nullptr;  // stays loaded: the process ends soon
    const CUresult loaded = load(&module, glake::transfer::kCopyBlocksPtx);
    return loaded != CUDA_SUCCESS ? loaded
                                  : function(&function_, module, glake::transfer::kCopyBlocks);
  }
  // `table` is pinned host memory.
  CUresult launch(CUstream stream, const CopyBlock* table, unsigned count) {
    constexpr unsigned kThreads = glake::transfer::kBlockThreads;
    auto at = reinterpret_cast<CUdeviceptr>(table);
    const unsigned groups =
        std::clamp((count + kThreads / 32 - 1) / (kThreads / 32), 1u, glake::transfer::kMostGroups);
    void* arguments[] = {&at, &count};
    return launch_(function_, groups, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr);
  }

 private:
  decltype(&::cuLaunchKernel) launch_ = nullptr;
  CUfunction function_ = nullptr;
};

}  // namespace kernels
