// Libraries and their kernels. "Library Management" of the CUDA Driver API.
#include <optional>

#include "code.h"
#include "driver.h"
#include "libraries.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

uint64_t id_of(CUlibrary library) { return reinterpret_cast<uint64_t>(library); }

// Loads the code that `read` gives. `source` is the caller's argument, and is checked.
template <class Read>
CUresult load_library(Symbol symbol, CUlibrary* library, const void* source, Read&& read) {
  return locked(symbol, 0, [&](Driver& driver) -> CUresult {
    if (library == nullptr || source == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::string code;
    const CUresult result = take_code(&driver, read, &code);
    if (result != CUDA_SUCCESS) return result;
    *library = reinterpret_cast<CUlibrary>(driver.libraries.load(std::move(code)));
    return CUDA_SUCCESS;
  });
}

// For calls about a kernel. They need a valid handle.
template <class Body>
CUresult on_kernel(Symbol symbol, CUkernel handle, Body&& body) {
  return locked(symbol, 0, [&](Driver& driver) -> CUresult {
    const Libraries::Kernel* found = driver.libraries.find(handle);
    return found == nullptr ? bad_handle("kernel") : body(driver, *found);
  });
}

CUresult check_device(const Driver& driver, CUdevice device) {
  return device >= 0 && device < driver.devices ? CUDA_SUCCESS : no_device();
}

// Loads the library's code into a context, if it is not there yet. The lock may be released
// meanwhile.
CUresult load_in_context(Driver& driver, Lock* lock, uint64_t library, uint64_t context,
                         uint64_t* module) {
  std::optional<DriverLock::Turn> turn;
  if (driver.libraries.is_new(library, context)) {
    turn.emplace(&driver.calls, lock, Symbol::k_cuLibraryLoadData, DriverLock::Load{});
  }
  return driver.libraries.module(library, context, module);
}

// The context in which a call launches a kernel. 0: there is none, which the call itself says.
uint64_t context_of(Driver& driver, const CUstream* stream) {
  const Context* current = driver.contexts.current();
  if (stream == nullptr) return current == nullptr ? 0 : current->id;
  const Stream* found = driver.streams.resolve(*stream, current);
  return found == nullptr ? 0 : found->context;
}

}  // namespace

CUresult simcuda::resolve_kernel(CUfunction* function, const CUstream* stream) try {
  if (!Libraries::may_be_kernel(*function)) return CUDA_SUCCESS;
  Driver* driver = running.load(std::memory_order_acquire);
  if (driver == nullptr || forked.load(std::memory_order_relaxed) || in_host_function) {
    return CUDA_SUCCESS;  // the call itself fails
  }
  const auto kernel = reinterpret_cast<CUkernel>(*function);
  Lock lock(driver->mutex);
  const Libraries::Kernel* found = driver->libraries.find(kernel);
  const uint64_t context = found == nullptr ? 0 : context_of(*driver, stream);
  if (context == 0) return CUDA_SUCCESS;
  uint64_t id = 0;
  CUresult result = load_in_context(*driver, &lock, found->library, context, &id);
  found = driver->libraries.find(kernel);  // it may be gone, as the lock was released
  if (result != CUDA_SUCCESS || found == nullptr) return result;
  result = driver->libraries.function(*found, context, &id);
  if (result == CUDA_SUCCESS) *function = reinterpret_cast<CUfunction>(id);
  return result;
} catch (const std::bad_alloc&) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                           unsigned int, CUlibraryOption*, void**, unsigned int) {
  return load_library(CALL(cuLibraryLoadData), library, code, [&](std::string* copy) {
    *copy = copy_of_code(code);
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**,
                               unsigned int, CUlibraryOption*, void**, unsigned int) {
  return load_library(CALL(cuLibraryLoadFromFile), library, path, [&](std::string* code) {
    return read_code(path, code) ? CUDA_SUCCESS : no_code(path);
  });
}

CUresult cuLibraryUnload(CUlibrary library) {
  return locked(CALL(cuLibraryUnload), 0, [&](Driver& driver) -> CUresult {
    const CUresult unsafe = driver.captures.check_unsafe();
    return unsafe != CUDA_SUCCESS ? unsafe : driver.libraries.unload(id_of(library));
  });
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return locked(CALL(cuLibraryGetKernel), 0, [&](Driver& driver) -> CUresult {
    if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    uint64_t id = 0;
    const CUresult result = driver.libraries.kernel(id_of(library), name, &id);
    if (result == CUDA_SUCCESS) *kernel = reinterpret_cast<CUkernel>(id);
    return result;
  });
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  return blocking(
      CALL(cuLibraryGetModule), [&](Driver& driver, Context& context, Lock* lock) -> CUresult {
        if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
        uint64_t id = 0;
        const CUresult result = load_in_context(driver, lock, id_of(library), context.id, &id);
        if (result == CUDA_SUCCESS) *module = reinterpret_cast<CUmodule>(id);
        return result;
      });
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  auto resolved = reinterpret_cast<CUfunction>(kernel);
  const CUresult loaded = resolve_kernel(&resolved);
  if (loaded != CUDA_SUCCESS) return loaded;
  return in_context(CALL(cuKernelGetFunction), 0, [&](Driver& driver, Context&) -> CUresult {
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (driver.kernels.find(resolved) == nullptr) return bad_handle("kernel");
    *function = resolved;
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  return on_kernel(CALL(cuKernelGetLibrary), kernel,
                   [&](Driver&, const Libraries::Kernel& found) -> CUresult {
                     if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
                     *library = reinterpret_cast<CUlibrary>(found.library);
                     return CUDA_SUCCESS;
                   });
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return on_kernel(CALL(cuKernelGetName), kernel,
                   [&](Driver&, const Libraries::Kernel& found) -> CUresult {
                     if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
                     *name = found.name.c_str();
                     return CUDA_SUCCESS;
                   });
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice device) {
  return on_kernel(CALL(cuKernelGetAttribute), kernel,
                   [&](Driver& driver, const Libraries::Kernel&) -> CUresult {
                     const CUresult wrong = check_device(driver, device);
                     return wrong != CUDA_SUCCESS ? wrong : function_attribute(value, attribute);
                   });
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int, CUkernel kernel,
                              CUdevice device) {
  return on_kernel(CALL(cuKernelSetAttribute), kernel,
                   [&](Driver& driver, const Libraries::Kernel&) -> CUresult {
                     const CUresult wrong = check_device(driver, device);
                     return wrong != CUDA_SUCCESS ? wrong : known_attribute(attribute);
                   });
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice device) {
  return on_kernel(
      CALL(cuKernelSetCacheConfig), kernel,
      [&](Driver& driver, const Libraries::Kernel&) { return check_device(driver, device); });
}
