#include "driver_calls.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace cudart {
namespace {

[[noreturn]] void give_up(const char* what, const char* why) {
  std::fprintf(stderr, "libcudart (simulated): %s: %s\n", what, why != nullptr ? why : "not there");
  std::abort();
}

DriverCalls look_up() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) give_up("libcuda.so.1", dlerror());
  DriverCalls calls;
  calls.cuGetProcAddress =
      reinterpret_cast<decltype(calls.cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2"));
  if (calls.cuGetProcAddress == nullptr) give_up("cuGetProcAddress_v2", dlerror());
  const auto get = calls.cuGetProcAddress;
  const auto take = [get](const char* name, int version) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (get(name, &function, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) != CUDA_SUCCESS ||
        function == nullptr) {
      give_up(name, nullptr);
    }
    return function;
  };
#define X(name, text, version) \
  calls.name = reinterpret_cast<decltype(calls.name)>(take(text, version));
  CUDART_DRIVER_CALLS(X)
#undef X
  calls.capture_info =
      reinterpret_cast<decltype(calls.capture_info)>(take("cuStreamGetCaptureInfo", 11030));
  return calls;
}

}  // namespace

const DriverCalls& driver() {
  static const DriverCalls calls = look_up();
  return calls;
}

}  // namespace cudart
