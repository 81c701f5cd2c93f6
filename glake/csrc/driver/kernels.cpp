// Kernels from PTX text, which the driver compiles for its GPUs.
#include "driver/calls.h"

namespace glake {
namespace {

CUmodule module_of(const Kernel& kernel) { return reinterpret_cast<CUmodule>(kernel.module); }

// True if the driver will never take this text for this GPU.
bool refused(CUresult result) {
  return result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_INVALID_PTX ||
         result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION || result == CUDA_ERROR_NO_BINARY_FOR_GPU ||
         result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND || result == CUDA_ERROR_NOT_FOUND ||
         result == CUDA_ERROR_INVALID_SOURCE;
}

}  // namespace

Status Driver::load_kernel(int device, const char* image, const char* name, Kernel* kernel) {
  *kernel = {};
  const driver::Table& table = *table_;
  if (table.cuModuleLoadData == nullptr || table.cuModuleGetFunction == nullptr ||
      table.cuModuleUnload == nullptr || table.cuLaunchKernel == nullptr) {
    return glake::status(CUDA_ERROR_NOT_SUPPORTED);
  }
  CUdevice d = 0;
  int same = 0;
  CUresult r = table.cuDeviceGet(&d, device);
  if (r == CUDA_SUCCESS) {
    r = table.cuDeviceGetAttribute(&same,
                                   CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, d);
  }
  if (r == CUDA_SUCCESS && same == 0) r = CUDA_ERROR_NOT_SUPPORTED;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  if (r == CUDA_SUCCESS) r = table.cuModuleLoadData(&module, image);
  if (r == CUDA_SUCCESS) {
    r = table.cuModuleGetFunction(&function, module, name);
    if (r != CUDA_SUCCESS) table.cuModuleUnload(module);
  }
  if (refused(r)) r = CUDA_ERROR_NOT_SUPPORTED;
  if (r != CUDA_SUCCESS) return status(r);
  *kernel = {reinterpret_cast<uintptr_t>(module), reinterpret_cast<uintptr_t>(function)};
  return {};
}

Status Driver::unload_kernel(const Kernel& kernel) {
  return status(table_->cuModuleUnload(module_of(kernel)));
}

Status Driver::launch(const Kernel& kernel, unsigned groups, unsigned threads, void** arguments,
                      StreamHandle stream) {
  return status(table_->cuLaunchKernel(reinterpret_cast<CUfunction>(kernel.function), groups, 1, 1,
                                       threads, 1, 1, 0, stream_of(stream), arguments, nullptr));
}

}  // namespace glake
