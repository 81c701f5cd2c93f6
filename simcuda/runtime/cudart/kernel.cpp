// What can be answered about kernels without their code: attributes, occupancy, libraries.
#include "kernel.h"

#include <algorithm>
#include <cstring>

namespace cudart {

int attribute(CUdevice_attribute which) {
  int value = 0;
  driver().cuDeviceGetAttribute(&value, which, current_device());
  return value;
}

// The bound by threads, by blocks and by dynamic shared memory. Registers are not known without the
// code and bound nothing here, so the result is the most that a kernel could reach.
int blocks_per_multiprocessor(const Kernel* kernel, int threads, size_t shared) {
  if (threads > attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) ||
      shared > static_cast<size_t>(kernel->max_dynamic_shared)) {
    return 0;
  }
  const int warp = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  const int rounded = (threads + warp - 1) / warp * warp;
  int blocks = std::min(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / rounded,
                        attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR));
  const size_t each =
      shared + static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK));
  const auto whole =
      static_cast<size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
  return each == 0 ? blocks : std::min(blocks, static_cast<int>(whole / each));
}

}  // namespace cudart

using namespace cudart;  // NOLINT: what follows is the C face

namespace {

Error set_attribute(Kernel* kernel, int which, int value) {
  if (kernel == nullptr) return kInvalidDeviceFunction;
  if (which < kMaxDynamicShared || which > kLastFuncAttribute) return kInvalidValue;
  if (which != kMaxDynamicShared) return kSuccess;  // hints, and clusters, have no effect here
  if (value < 0 || value > attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)) {
    return kInvalidValue;
  }
  kernel->max_dynamic_shared = value;
  return kSuccess;
}

Error occupancy(int* blocks, const void* function, int threads, size_t shared) {
  const Kernel* kernel = kernel_of(function);
  if (kernel == nullptr) return kInvalidDeviceFunction;
  if (blocks == nullptr || threads <= 0) return kInvalidValue;
  *blocks = blocks_per_multiprocessor(kernel, threads, shared);
  return kSuccess;
}

}  // namespace

// Registers and static memory are not known without the code. It answers that none are used.
CUDART(cudaFuncGetAttributes)(FuncAttributes* result, const void* function) {
  CUDART_READY();
  const Kernel* kernel = kernel_of(function);
  if (kernel == nullptr) return told(kInvalidDeviceFunction);
  if (result == nullptr) return told(kInvalidValue);
  std::memset(result, 0, sizeof *result);
  result->max_threads = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  result->ptx_version = result->binary_version =
      10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
      attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  result->max_dynamic_shared = kernel->max_dynamic_shared;
  result->shared_carveout = -1;  // cudaSharedmemCarveoutDefault
  return kSuccess;
}

CUDART(cudaFuncSetAttribute)(const void* function, int which, int value) {
  CUDART_READY();
  return told(set_attribute(kernel_of(function), which, value));
}

CUDART(cudaFuncSetCacheConfig)(const void* function, int) {  // a preference
  CUDART_READY();
  return kernel_of(function) == nullptr ? told(kInvalidDeviceFunction) : kSuccess;
}

CUDART(cudaKernelSetAttributeForDevice)(Kernel* kernel, int which, int value, int device) {
  CUDART_READY();
  return told(is_device(device) ? set_attribute(kernel, which, value) : kInvalidDevice);
}

CUDART(cudaOccupancyMaxActiveBlocksPerMultiprocessor)
(int* blocks, const void* function, int threads, size_t shared) {
  CUDART_READY();
  return told(occupancy(blocks, function, threads, shared));
}

CUDART(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
(int* blocks, const void* function, int threads, size_t shared, unsigned) {
  CUDART_READY();
  return told(occupancy(blocks, function, threads, shared));
}

// A library's code is not read. It is assumed to have every kernel that it is asked for.
CUDART(cudaLibraryLoadData)
(void** library, const void* code, void*, void**, unsigned, void*, void**, unsigned) {
  CUDART_READY();
  if (library == nullptr || code == nullptr) return told(kInvalidValue);
  *library = new char;
  return kSuccess;
}

CUDART(cudaLibraryUnload)(void* library) {
  delete static_cast<char*>(library);
  return kSuccess;
}

CUDART(cudaLibraryGetKernel)(Kernel** kernel, void* library, const char* name) {
  if (kernel == nullptr || library == nullptr || name == nullptr) return told(kInvalidValue);
  *kernel = new_kernel(name);
  return kSuccess;
}
