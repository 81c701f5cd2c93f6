// Modules, and launches of the one kernel simcuda runs: glake_copy_blocks(table, count), which
// copies the blocks {dst, src, bytes} of a table.
#include <cstring>

#include "driver.h"
#include "work.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

constexpr const char kName[] = "glake_copy_blocks";
constexpr unsigned kWarp = 32, kMostThreads = 256;  // as the kernel's launch bounds are

struct Shape {
  unsigned groups[3], threads[3];
};

CUresult check_shape(const Shape& shape) {
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (shape.groups[i] == 0 || shape.threads[i] == 0) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuLaunchKernel: a dimension of 0");
    }
    threads *= shape.threads[i];
  }
  if (threads > kMostThreads) {
    return fail(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
                "cuLaunchKernel: the kernel was compiled for 256 threads a block");
  }
  if (shape.threads[0] % kWarp != 0 || threads != shape.threads[0] ||
      shape.groups[1] * shape.groups[2] != 1) {
    return fail(CUDA_ERROR_INVALID_VALUE, "glake_copy_blocks: whole warps, in one dimension");
  }
  return CUDA_SUCCESS;
}

}  // namespace

namespace simcuda {

CUresult Kernels::load(uint64_t context, const char* image, uint64_t* module) {
  const std::string text = image;
  if (text.find(".version") == std::string::npos || text.find(".target") == std::string::npos) {
    return fail(CUDA_ERROR_INVALID_IMAGE, "cuModuleLoadData: not PTX, which is all simcuda takes");
  }
  if (text.find(std::string(".entry ") + kName + "(") == std::string::npos) {
    return fail(CUDA_ERROR_NOT_SUPPORTED,
                std::string("cuModuleLoadData: simcuda runs no kernel but ") + kName);
  }
  *module = modules_.add({context, 0});
  return CUDA_SUCCESS;
}

CUresult Kernels::unload(uint64_t module) {
  const Module* found = modules_.find(module);
  if (found == nullptr) return bad_handle("module");
  if (found->function != 0) functions_.remove(found->function);
  modules_.remove(module);
  return CUDA_SUCCESS;
}

CUresult Kernels::function(uint64_t module, const std::string& name, uint64_t* function) {
  Module* found = modules_.find(module);
  if (found == nullptr) return bad_handle("module");
  if (name != kName) return fail(CUDA_ERROR_NOT_FOUND, "the module has no kernel " + name);
  if (found->function == 0) found->function = functions_.add({module, found->context});
  *function = found->function;
  return CUDA_SUCCESS;
}

void Kernels::forget(uint64_t context) {
  std::vector<uint64_t> gone;
  modules_.for_each([&](uint64_t id, const Module& module) {
    if (module.context == context) gone.push_back(id);
  });
  for (const uint64_t id : gone) unload(id);
}

}  // namespace simcuda

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return in_context(CALL(cuModuleLoadData), 0, [&](Driver& driver, Context& context) -> CUresult {
    if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult unsafe = driver.streams.check_unsafe();
    if (unsafe != CUDA_SUCCESS) return unsafe;
    uint64_t id = 0;
    const CUresult result = driver.kernels.load(context.id, static_cast<const char*>(image), &id);
    if (result == CUDA_SUCCESS) *module = reinterpret_cast<CUmodule>(id);
    return result;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return in_context(CALL(cuModuleGetFunction), 0, [&](Driver& driver, Context&) -> CUresult {
    if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    uint64_t id = 0;
    const CUresult result = driver.kernels.function(reinterpret_cast<uint64_t>(module), name, &id);
    if (result == CUDA_SUCCESS) *function = reinterpret_cast<CUfunction>(id);
    return result;
  });
}

CUresult cuModuleUnload(CUmodule module) {
  return in_context(CALL(cuModuleUnload), 0, [&](Driver& driver, Context&) -> CUresult {
    const CUresult unsafe = driver.streams.check_unsafe();
    if (unsafe != CUDA_SUCCESS) return unsafe;
    return driver.kernels.unload(reinterpret_cast<uint64_t>(module));
  });
}

CUresult cuLaunchKernel(CUfunction function, unsigned int groups_x, unsigned int groups_y,
                        unsigned int groups_z, unsigned int threads_x, unsigned int threads_y,
                        unsigned int threads_z, unsigned int, CUstream stream, void** arguments,
                        void** extra) {
  const Shape shape{{groups_x, groups_y, groups_z}, {threads_x, threads_y, threads_z}};
  return on_stream_blocking(
      CALL(cuLaunchKernel), stream, [&](Driver& driver, uint64_t id, Lock*) -> CUresult {
        const Kernels::Function* found = driver.kernels.find(function);
        if (found == nullptr) return bad_handle("function");
        if (found->context != driver.streams.streams.find(id)->context) {
          return fail(CUDA_ERROR_INVALID_HANDLE,
                      "cuLaunchKernel: the function and the stream are of two contexts");
        }
        if (extra != nullptr || arguments == nullptr || arguments[0] == nullptr ||
            arguments[1] == nullptr) {
          return fail(CUDA_ERROR_INVALID_VALUE, "cuLaunchKernel: kernelParams are missing");
        }
        const CUresult shaped = check_shape(shape);
        if (shaped != CUDA_SUCCESS) return shaped;
        uint64_t table = 0;
        uint32_t count = 0;
        std::memcpy(&table, arguments[0], sizeof table);
        std::memcpy(&count, arguments[1], sizeof count);
        return copy_blocks(&driver, id, table, count);
      });
}
