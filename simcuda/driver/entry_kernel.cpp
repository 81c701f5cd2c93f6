// Modules, and launches of the one kernel that simcuda runs. glake_copy_blocks(table, count) copies
// the blocks {dst, src, bytes} of a table. If simcuda stands in for CUDA's driver, other kernels
// (NVRTC's, Triton's) are counted and ordered like those that nvcc compiled.
#include <atomic>
#include <cstring>
#include <set>

#include "code.h"
#include "driver.h"
#include "runtime.h"
#include "work.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

constexpr const char kName[] = "glake_copy_blocks";
constexpr unsigned kWarp = 32, kMostThreads = 256;  // the launch bounds of the kernel
constexpr unsigned kMostAnyThreads = 1024;          // in a block, on every GPU so far

std::atomic<bool> counting{false};  // whether to take and count kernels that nobody runs

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
    return fail(CUDA_ERROR_INVALID_VALUE,
                "glake_copy_blocks: blocks are whole warps, grid and block one-dimensional");
  }
  return CUDA_SUCCESS;
}

// "The total number of threads per block": from 1 to what the device allows.
CUresult check_any_shape(const Shape& shape) {
  uint64_t threads = 1, groups = 1;
  for (int i = 0; i < 3; ++i) {
    threads *= shape.threads[i];
    groups *= shape.groups[i];
  }
  if (threads > 0 && groups > 0 && threads <= kMostAnyThreads) return CUDA_SUCCESS;
  return fail(CUDA_ERROR_INVALID_VALUE, "cuLaunchKernel: " + std::to_string(groups) +
                                            " blocks of " + std::to_string(threads) +
                                            " threads; a block has 1 to 1024");
}

// For calls about a function, except its launch. They need a valid handle.
template <class Body>
CUresult on_function(Symbol symbol, CUfunction function, Body&& body) {
  return in_context(symbol, 0, [&](Driver& driver, Context&) -> CUresult {
    return driver.kernels.find(function) == nullptr ? bad_handle("function") : body();
  });
}

}  // namespace

void simcuda_count_kernels(int on) { counting = on != 0; }

namespace simcuda {

CUresult Kernels::load(uint64_t context, const void* image, uint64_t* module) {
  std::string code = copy_of_code(image);
  if (code.empty()) {
    return fail(CUDA_ERROR_INVALID_IMAGE,
                "cuModuleLoadData: neither PTX nor a cubin nor a fat binary");
  }
  if (has_kernel(code, kName)) {
    code.clear();
  } else if (!counting.load(std::memory_order_relaxed)) {
    return fail(CUDA_ERROR_NOT_SUPPORTED,
                std::string("cuModuleLoadData: simcuda runs no kernel but ") + kName);
  }
  Module made;
  made.context = context;
  made.code = std::move(code);
  *module = modules_.add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult Kernels::unload(uint64_t module) {
  const Module* found = modules_.find(module);
  if (found == nullptr) return bad_handle("module");
  for (const auto& [name, function] : found->functions) functions_.remove(function);
  modules_.remove(module);
  return CUDA_SUCCESS;
}

CUresult Kernels::function(uint64_t module, const std::string& name, uint64_t* function) {
  Module* found = modules_.find(module);
  if (found == nullptr) return bad_handle("module");
  const bool known = found->code.empty() ? name == kName : has_kernel(found->code, name);
  if (!known) return fail(CUDA_ERROR_NOT_FOUND, "the module has no kernel " + name);
  uint64_t& made = found->functions[name];
  if (made == 0) {
    static auto* const names = new std::set<std::string>;  // guarded by the driver's lock
    made = functions_.add({module, found->context,
                           found->code.empty() ? nullptr : names->insert(name).first->c_str()});
  }
  *function = made;
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
    const CUresult unsafe = driver.captures.check_unsafe();
    if (unsafe != CUDA_SUCCESS) return unsafe;
    uint64_t id = 0;
    const CUresult result = driver.kernels.load(context.id, image, &id);
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
    const CUresult unsafe = driver.captures.check_unsafe();
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
      CALL(cuLaunchKernel), stream, [&](Driver& driver, uint64_t id, Lock* lock) -> CUresult {
        const Kernels::Function* found = driver.kernels.find(function);
        if (found == nullptr) return bad_handle("function");
        if (found->context != driver.streams.find(id)->context) {
          return fail(CUDA_ERROR_INVALID_HANDLE,
                      "cuLaunchKernel: the function and the stream belong to different contexts");
        }
        if (found->counted != nullptr) {
          const CUresult shaped = check_any_shape(shape);
          if (shaped != CUDA_SUCCESS) return shaped;
          const char* name = found->counted;
          const CUresult result = launch_uncomputed(&driver, driver.streams.find(id), name);
          driver.scheduler->waits().make_room(lock);
          return result;
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

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int, CUjit_option*,
                            void**) {
  return cuModuleLoadData(module, image);  // the options are for the compiler
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                          void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ,
                        config->blockDimX, config->blockDimY, config->blockDimZ,
                        config->sharedMemBytes, config->hStream, arguments, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int groups_x,
                                   unsigned int groups_y, unsigned int groups_z,
                                   unsigned int threads_x, unsigned int threads_y,
                                   unsigned int threads_z, unsigned int shared, CUstream stream,
                                   void** arguments) {
  return cuLaunchKernel(function, groups_x, groups_y, groups_z, threads_x, threads_y, threads_z,
                        shared, stream, arguments, nullptr);
}

// Registers and static shared memory are not known, so their answer is 0. The answer for threads is
// the most that a block may have.
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  return on_function(CALL(cuFuncGetAttribute), function, [&]() -> CUresult {
    if (value == nullptr || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? kMostAnyThreads : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int) {
  return on_function(CALL(cuFuncSetAttribute), function, [&] {
    const bool known = attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache) {
  return on_function(CALL(cuFuncSetCacheConfig), function, [] { return CUDA_SUCCESS; });
}

// Returns as many blocks as a multiprocessor has threads for. Other bounds are not known.
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                     size_t) {
  constexpr int kThreadsOfAMultiprocessor = 2048;
  return on_function(CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor), function,
                     [&]() -> CUresult {
                       if (blocks == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
                       *blocks = kThreadsOfAMultiprocessor / threads;
                       return CUDA_SUCCESS;
                     });
}
