// Modules, and launches of kernels. "Module Management" and "Execution Control" of the CUDA Driver
// API.
#include <cstring>

#include "code.h"
#include "driver.h"
#include "work.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

constexpr unsigned kWarp = 32, kMostThreads = 256;  // the launch bounds of the kernel

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
  if (threads > 0 && groups > 0 && threads <= kMostThreadsOfABlock) return CUDA_SUCCESS;
  return fail(CUDA_ERROR_INVALID_VALUE, "cuLaunchKernel: " + std::to_string(groups) +
                                            " blocks of " + std::to_string(threads) +
                                            " threads; a block has 1 to 1024");
}

// Loads the code that `read` gives. `source` is the caller's argument, and is checked.
template <class Read>
CUresult load_module(Symbol symbol, CUmodule* module, const void* source, Read&& read) {
  return in_context(symbol, 0, [&](Driver& driver, Context& context) -> CUresult {
    if (module == nullptr || source == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::string code;
    const CUresult result = take_code(&driver, read, &code);
    if (result != CUDA_SUCCESS) return result;
    *module = reinterpret_cast<CUmodule>(driver.kernels.load(context.id, std::move(code)));
    return CUDA_SUCCESS;
  });
}

// For calls about a function, except its launch. They need a valid handle.
template <class Body>
CUresult on_function(Symbol symbol, CUfunction function, Body&& body) {
  return in_context(symbol, 0, [&](Driver& driver, Context&) -> CUresult {
    return driver.kernels.find(function) == nullptr ? bad_handle("function") : body();
  });
}

}  // namespace

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return load_module(CALL(cuModuleLoadData), module, image, [&](std::string* code) {
    *code = copy_of_code(image);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load_module(CALL(cuModuleLoadFatBinary), module, image, [&](std::string* code) {
    *code = copy_of_code(image);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return load_module(CALL(cuModuleLoad), module, path, [&](std::string* code) {
    return read_code(path, code) ? CUDA_SUCCESS : no_code(path);
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
    const auto id = reinterpret_cast<uint64_t>(module);
    if (driver.kernels.of_library(id)) {
      return fail(CUDA_ERROR_NOT_PERMITTED,
                  "cuModuleUnload: a library's module ends with the library (cuLibraryUnload)");
    }
    return driver.kernels.unload(id);
  });
}

CUresult cuLaunchKernel(CUfunction function, unsigned int groups_x, unsigned int groups_y,
                        unsigned int groups_z, unsigned int threads_x, unsigned int threads_y,
                        unsigned int threads_z, unsigned int, CUstream stream, void** arguments,
                        void** extra) {
  const Shape shape{{groups_x, groups_y, groups_z}, {threads_x, threads_y, threads_z}};
  const CUresult loaded = resolve_kernel(&function, &stream);
  if (loaded != CUDA_SUCCESS) return loaded;
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

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  return on_function(CALL(cuFuncGetAttribute), function,
                     [&]() -> CUresult { return function_attribute(value, attribute); });
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int) {
  return on_function(CALL(cuFuncSetAttribute), function,
                     [&] { return known_attribute(attribute); });
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache) {
  return on_function(CALL(cuFuncSetCacheConfig), function, [] { return CUDA_SUCCESS; });
}

// Returns as many blocks as a multiprocessor has threads for. Other bounds are not known.
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                     size_t) {
  constexpr int kThreadsOfAMultiprocessor = 2048;
  const CUresult loaded = resolve_kernel(&function);
  if (loaded != CUDA_SUCCESS) return loaded;
  return on_function(CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor), function,
                     [&]() -> CUresult {
                       if (blocks == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
                       *blocks = kThreadsOfAMultiprocessor / threads;
                       return CUDA_SUCCESS;
                     });
}
