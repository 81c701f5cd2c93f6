// The functions that code compiled by nvcc calls: registration at load time, the configuration of
// <<<>>>, and the launch. No kernel runs. Each is ordered, counted work of its stream
// (simcuda_launch).
#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernel.h"
#include "simcuda/driver/runtime.h"
#include "symbols.h"

namespace cudart {
namespace {

// A library's kernels and variables, by their addresses on the host.
struct Binary {
  void* handle = this;  // its address is the handle
  std::vector<const void*> kernels, variables;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Kernel*> kernels;
};

Registry& registry() {
  // Never destroyed, because libraries unregister while the process ends.
  static auto* kept = new Registry;
  return *kept;
}

// A copy of a kernel's name. It stays after its library is unloaded, and is the same for equal
// names.
const char* kept_name(const std::string& name) {
  struct Names {
    std::mutex mutex;
    std::unordered_set<std::string> all;
  };
  static auto* kept = new Names;
  std::lock_guard<std::mutex> lock(kept->mutex);
  return kept->all.insert(name).first->c_str();
}

struct Configured {
  Shape shape;
  CUstream stream;
};
thread_local std::vector<Configured> configured;
thread_local std::string refused;  // see refusal()

// Refuses a kernel that nobody computes, in numbers mode. Its name is in the error's text, which
// the user gets as an exception with the line of the script.
void refuse(const char* name) {
  int status = 0;
  char* readable = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  refused = std::string("operation not supported: nobody computes the kernel ") +
            (status == 0 ? readable : name) + " in numbers mode (glake's docs/dry-run.md)";
  std::free(readable);
}

Error check_shape(const Kernel& kernel, const Shape& shape) {
  const auto& [grid, block, shared] = shape;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || uint64_t{grid.x} * grid.y * grid.z == 0) return kInvalidConfiguration;
  const auto above = [](unsigned value, CUdevice_attribute most) {
    return value > static_cast<unsigned>(attribute(most));
  };
  if (threads > static_cast<uint64_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)) ||
      above(block.z, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z) ||
      above(grid.x, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X) ||
      above(grid.y, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y) ||
      above(grid.z, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)) {
    return kInvalidConfiguration;
  }
  return shared > static_cast<size_t>(kernel.max_dynamic_shared) ? kInvalidValue : kSuccess;
}

}  // namespace

Kernel* kernel_of(const void* function) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  const auto found = registry().kernels.find(function);
  return found == registry().kernels.end() ? nullptr : found->second;
}

Kernel* new_kernel(const std::string& name) {
  auto* kernel = new Kernel;  // the runtime has no call that frees it
  kernel->name = kernel->counted = kept_name(name);
  return kernel;
}

Error launch(Kernel* kernel, const Shape& shape, CUstream stream) {
  CUDART_READY();
  if (kernel == nullptr) return told(kInvalidDeviceFunction);
  const Error bad = check_shape(*kernel, shape);
  if (bad != kSuccess) return told(bad);
  const char* name = __atomic_load_n(&kernel->counted, __ATOMIC_ACQUIRE);
  if (name == nullptr) {
    name = kept_name(kernel->name);
    __atomic_store_n(&kernel->counted, name, __ATOMIC_RELEASE);
  }
  const int result = simcuda_launch(name, stream);
  refused.clear();
  if (result == kNotSupported) refuse(name);
  return told(result);
}

const char* refusal() { return refused.empty() ? nullptr : refused.c_str(); }

}  // namespace cudart

using namespace cudart;  // NOLINT: what follows is the C face

CUDART_EXPORT void** __cudaRegisterFatBinary(void*) { return &(new Binary)->handle; }

CUDART_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}

CUDART_EXPORT char __cudaInitModule(void**) { return 1; }

CUDART_EXPORT void __cudaUnregisterFatBinary(void** handle) {
  auto* binary = static_cast<Binary*>(*handle);
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    for (const void* kernel : binary->kernels) {
      const auto found = registry().kernels.find(kernel);
      if (found == registry().kernels.end()) continue;
      delete found->second;
      registry().kernels.erase(found);
    }
  }
  for (const void* variable : binary->variables) forget_variable(variable);
  delete binary;
}

CUDART_EXPORT void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name,
                                          int, void*, void*, void*, void*, int*) {
  auto* kernel = new Kernel;
  kernel->name = name;
  static_cast<Binary*>(*handle)->kernels.push_back(host);
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().kernels[host] = kernel;
}

CUDART_EXPORT void __cudaRegisterVar(void** handle, char* host, char*, const char*, int,
                                     size_t bytes, int, int) {
  static_cast<Binary*>(*handle)->variables.push_back(host);
  add_variable(host, bytes);
}

CUDART_EXPORT unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared,
                                                   CUstream stream) {
  configured.push_back({{grid, block, shared}, stream});
  return 0;
}

CUDART(__cudaPopCallConfiguration)(Dim3* grid, Dim3* block, size_t* shared, void* stream) {
  if (configured.empty()) return told(kMissingConfiguration);
  const Configured call = configured.back();
  configured.pop_back();
  *grid = call.shape.grid;
  *block = call.shape.block;
  *shared = call.shape.shared;
  *static_cast<CUstream*>(stream) = call.stream;
  return kSuccess;
}

CUDART(__cudaGetKernel)(Kernel** kernel, const void* function) {
  *kernel = kernel_of(function);
  return *kernel == nullptr ? told(kInvalidDeviceFunction) : kSuccess;
}

CUDART(__cudaLaunchKernel)
(Kernel* kernel, Dim3 grid, Dim3 block, void**, size_t shared, CUstream stream) {
  return launch(kernel, {grid, block, shared}, stream);
}

CUDART(cudaLaunchKernel)
(const void* function, Dim3 grid, Dim3 block, void**, size_t shared, CUstream stream) {
  return launch(kernel_of(function), {grid, block, shared}, stream);
}

// "The total number of blocks launched cannot exceed the maximum number of blocks per
// multiprocessor ... times the number of multiprocessors": cudaLaunchCooperativeKernel.
CUDART(cudaLaunchCooperativeKernel)
(const void* function, Dim3 grid, Dim3 block, void**, size_t shared, CUstream stream) {
  CUDART_READY();
  Kernel* kernel = kernel_of(function);
  if (kernel == nullptr) return told(kInvalidDeviceFunction);
  const Error bad = check_shape(*kernel, {grid, block, shared});
  if (bad != kSuccess) return told(bad);
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  const auto most =
      static_cast<uint64_t>(blocks_per_multiprocessor(kernel, static_cast<int>(threads), shared) *
                            attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  if (blocks > most) return told(kCooperativeLaunchTooLarge);
  return launch(kernel, {grid, block, shared}, stream);
}

CUDART(cudaLaunchKernelExC)(const LaunchConfig* config, const void* function, void**) {
  if (config == nullptr) return told(kInvalidValue);
  return launch(kernel_of(function), {config->grid, config->block, config->shared}, config->stream);
}
