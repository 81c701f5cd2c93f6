// libcublas: handles, streams and workspaces as in cuBLAS. Every operation is a launch.
#include <cuda.h>

#include "context.h"
#include "handles.h"
#include "standin.h"

#define STANDIN_LIBRARY "libcublas"

namespace {

enum Status : int {  // cublasStatus_t
  kSuccess = 0,
  kNotInitialized = 1,
  kAllocFailed = 3,
  kInvalidValue = 7,
  kExecutionFailed = 13,
  kNotSupported = 15,
};
#define STANDIN_UNSUPPORTED kNotSupported

struct Blas : standins::Handle {
  int math_mode = 0;
  CUdeviceptr own_workspace = 0;
};

// "If the cuBLAS library workspace is not set, all kernels will use the default workspace pool
// allocated during the cuBLAS context creation": cublasSetWorkspace. The size of that pool is not
// published. This takes the workspace that the same page recommends: 32 MiB from Hopper on, else 4
// MiB.
size_t default_workspace() {
  CUdevice device = 0;
  int major = 0;
  cuCtxGetDevice(&device);
  cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  return major >= 9 ? size_t{32} << 20 : size_t{4} << 20;
}

int launch(const char* name, standins::Handle* handle) {
  if (handle == nullptr) return kNotInitialized;
  return standins::launch_by_runtime(name, handle->stream) == CUDA_SUCCESS ? kSuccess
                                                                           : kExecutionFailed;
}
#define STANDIN_LAUNCH launch

}  // namespace

STANDIN_EXPORT int cublasCreate_v2(standins::Handle** handle) {
  if (handle == nullptr) return kInvalidValue;
  if (!standins::has_context()) return kNotInitialized;
  auto* blas = new Blas;
  if (cuMemAlloc(&blas->own_workspace, default_workspace()) != CUDA_SUCCESS) {
    delete blas;
    return kAllocFailed;
  }
  *handle = blas;
  return kSuccess;
}

STANDIN_EXPORT int cublasDestroy_v2(Blas* handle) {
  if (handle == nullptr) return kNotInitialized;
  if (handle->own_workspace != 0) cuMemFree(handle->own_workspace);
  delete handle;
  return kSuccess;
}

STANDIN_EXPORT int cublasSetStream_v2(Blas* handle, CUstream stream) {
  if (handle == nullptr) return kNotInitialized;
  handle->stream = stream;
  return kSuccess;
}

STANDIN_EXPORT int cublasGetStream_v2(Blas* handle, CUstream* stream) {
  if (handle == nullptr) return kNotInitialized;
  if (stream == nullptr) return kInvalidValue;
  *stream = handle->stream;
  return kSuccess;
}

STANDIN_EXPORT int cublasGetVersion_v2(Blas*, int* version) {
  if (version == nullptr) return kInvalidValue;
  *version = 130000;  // as cublasLtGetVersion says
  return kSuccess;
}

STANDIN_EXPORT int cublasSetWorkspace_v2(Blas* handle, void*, size_t) {
  return handle == nullptr ? kNotInitialized : kSuccess;
}

STANDIN_EXPORT int cublasSetPointerMode_v2(Blas* handle, int mode) {
  if (handle == nullptr) return kNotInitialized;
  handle->to_host = mode == 0;  // CUBLAS_POINTER_MODE_HOST
  return kSuccess;
}

STANDIN_EXPORT int cublasGetPointerMode_v2(Blas* handle, int* mode) {
  if (handle == nullptr) return kNotInitialized;
  *mode = handle->to_host ? 0 : 1;
  return kSuccess;
}

STANDIN_EXPORT int cublasSetMathMode(Blas* handle, int mode) {
  if (handle == nullptr) return kNotInitialized;
  handle->math_mode = mode;
  return kSuccess;
}

STANDIN_EXPORT int cublasGetMathMode(Blas* handle, int* mode) {
  if (handle == nullptr) return kNotInitialized;
  *mode = handle->math_mode;
  return kSuccess;
}

#include "kinds.h"
#include "simcuda/runtime/standins/lists/cublas.def"
