// The kernels of kernels.ptx, which the driver compiles, without nvcc. The simulator runs none of
// them. There open() returns false, and callers fill memory by memsets.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <utility>

#include "conformance/kernels_ptx.h"

namespace kernels {

constexpr unsigned kThreads = 256;

class Kernels {
 public:
  // False if the library launches no kernels, or not these (the simulator). Needs a current
  // context.
  bool open(const char* library) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return false;
    const auto load =
        reinterpret_cast<decltype(&::cuModuleLoadData)>(dlsym(handle, "cuModuleLoadData"));
    const auto function =
        reinterpret_cast<decltype(&::cuModuleGetFunction)>(dlsym(handle, "cuModuleGetFunction"));
    launch_ = reinterpret_cast<decltype(&::cuLaunchKernel)>(dlsym(handle, "cuLaunchKernel"));
    if (load == nullptr || function == nullptr || launch_ == nullptr) return false;
    CUmodule module = nullptr;  // stays loaded: the process ends soon
    status_ = load(&module, kPtx);
    if (status_ == CUDA_ERROR_NOT_SUPPORTED) return false;
    for (const auto& [name, to] : {std::pair<const char*, CUfunction*>{"stamp_bytes", &stamp_},
                                   {"add_one", &add_},
                                   {"gather", &gather_}}) {
      if (status_ == CUDA_SUCCESS) status_ = function(to, module, name);
    }
    return true;
  }
  CUresult status() const { return status_; }  // of loading the kernels

  CUresult stamp_bytes(CUstream stream, unsigned blocks, CUdeviceptr base, unsigned long long first,
                       unsigned long long step, unsigned long long count, unsigned value) {
    void* arguments[] = {&base, &first, &step, &count, &value};
    return start(stamp_, stream, blocks, arguments);
  }
  CUresult add_one(CUstream stream, unsigned blocks, CUdeviceptr base, unsigned long long words16) {
    void* arguments[] = {&base, &words16};
    return start(add_, stream, blocks, arguments);
  }
  CUresult gather(CUstream stream, unsigned blocks, CUdeviceptr base, unsigned long long mask,
                  unsigned long long count, CUdeviceptr out) {
    void* arguments[] = {&base, &mask, &count, &out};
    return start(gather_, stream, blocks, arguments);
  }

 private:
  CUresult start(CUfunction which, CUstream stream, unsigned blocks, void** arguments) {
    return launch_(which, blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr);
  }

  decltype(&::cuLaunchKernel) launch_ = nullptr;
  CUresult status_ = CUDA_SUCCESS;
  CUfunction stamp_ = nullptr, add_ = nullptr, gather_ = nullptr;
};

}  // namespace kernels
