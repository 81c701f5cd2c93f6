// Shared by the programs that measure a driver: its table, clocks, medians, rows of JSON.
//
// A program prints one JSON object: {"library": ..., "kernels": bool, "clock_us": ..., "rows":
// [...]}. A row has the name of the call ("call" or "what"), the way it was made ("case"), sizes,
// and the distribution of its times.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../tests/conformance/kernels.h"

#undef cuEventElapsedTime  // both versions have this signature; older drivers have only the first
extern "C" CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end);

// clang-format off
#define MEASURED_CALLS(X)                                                                         \
  X(cuInit) X(cuGetErrorName) X(cuDriverGetVersion) X(cuDeviceGetName) X(cuDeviceGetAttribute)    \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxSetCurrent)                     \
  X(cuCtxGetCurrent) X(cuCtxSynchronize) X(cuMemGetInfo) X(cuMemGetAllocationGranularity) X(cuMemAddressReserve)     \
  X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess)  \
  X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemcpyHtoD) X(cuMemcpyDtoH)   \
  X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) X(cuMemsetD32Async)              \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamWaitEvent)                \
  X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize)       \
  X(cuEventElapsedTime)
// Null where the library has none.
#define OPTIONAL_CALLS(X)                                                                         \
  X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuDeviceGetDefaultMemPool) X(cuMemPoolSetAttribute)      \
  X(cuMemHostRegister) X(cuMemHostUnregister) X(cuModuleLoadData) X(cuModuleUnload)
// clang-format on

namespace measure {

constexpr size_t kMiB = size_t{1} << 20;

struct Calls {
#define X(name) decltype(&::name) name = nullptr;
  MEASURED_CALLS(X)
  OPTIONAL_CALLS(X)
#undef X
};
inline Calls cu;

[[noreturn]] inline void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(2);
}

inline void expect_ok(CUresult got, const char* what, int line) {
  if (got == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cu.cuGetErrorName(got, &name);
  give_up("line " + std::to_string(line) + ": " + what + " returned " +
          (name == nullptr ? std::to_string(got) : name));
}
#define OK(call) ::measure::expect_ok((call), #call, __LINE__)

// Opens the library and device 0's context, which it returns.
inline CUcontext open(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) give_up(dlerror());
#define MEASURE_TEXT_(name) #name
#define MEASURE_TEXT(name) MEASURE_TEXT_(name)
#define X(name)                                                                     \
  cu.name = reinterpret_cast<decltype(cu.name)>(dlsym(handle, MEASURE_TEXT(name))); \
  if (cu.name == nullptr) give_up(std::string(library) + " lacks " MEASURE_TEXT(name));
  MEASURED_CALLS(X)
#undef X
#define X(name) cu.name = reinterpret_cast<decltype(cu.name)>(dlsym(handle, MEASURE_TEXT(name)));
  OPTIONAL_CALLS(X)
#undef X
  CUcontext context = nullptr;
  OK(cu.cuInit(0));
  OK(cu.cuDevicePrimaryCtxRetain(&context, 0));
  OK(cu.cuCtxSetCurrent(context));
  return context;
}

using Clock = std::chrono::steady_clock;
inline double now_us() {
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

template <class F>
double timed_us(F&& call) {
  const double start = now_us();
  call();
  return now_us() - start;
}

inline double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(q * static_cast<double>(values.size())))];
}

// The rows, which are printed at the end. Rows are missing where time ran out.
class Rows {
 public:
  // `sizes` has "\"name\": number" pairs with commas between. Microseconds unless `unit` says
  // otherwise.
  void add(const std::string& call, const std::string& how, const std::string& sizes,
           const std::vector<double>& values, const char* unit = "us") {
    if (values.empty()) return;
    char text[640];
    std::snprintf(text, sizeof text,
                  "{\"call\": \"%s\", \"case\": \"%s\", %s%s\"times\": %zu, \"unit\": \"%s\", "
                  "\"median\": %.4f, \"p10\": %.4f, \"p90\": %.4f, \"least\": %.4f}",
                  call.c_str(), how.c_str(), sizes.c_str(), sizes.empty() ? "" : ", ",
                  values.size(), unit, quantile(values, 0.5), quantile(values, 0.1),
                  quantile(values, 0.9), quantile(values, 0));
    rows_ += (rows_.empty() ? "" : ",\n ") + std::string(text);
  }
  void print(const char* program, const char* library, bool kernels) const {
    std::vector<double> empty;
    for (int i = 0; i < 1000; ++i) empty.push_back(timed_us([] {}));
    int version = 0;
    char name[256] = "";
    OK(cu.cuDriverGetVersion(&version));
    OK(cu.cuDeviceGetName(name, sizeof name, 0));
    std::printf(
        "{\"program\": \"%s\", \"library\": \"%s\", \"device\": \"%s\", "
        "\"driver_api\": %d, \"kernels\": %s, \"clock_us\": %.4f, \"rows\": [\n %s\n]}\n",
        program, library, name, version, kernels ? "true" : "false", quantile(empty, 0.5),
        rows_.c_str());
  }

 private:
  std::string rows_;
};

inline std::string pair(const char* name, uint64_t value) {
  return "\"" + std::string(name) + "\": " + std::to_string(value);
}

inline CUmemAllocationProp device_memory() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = 0;
  return prop;
}

inline void grant(CUdeviceptr at, size_t bytes) {
  CUmemAccessDesc desc{};
  desc.location = device_memory().location;
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OK(cu.cuMemSetAccess(at, bytes, &desc, 1));
}

// Handles of one size, which are released at the end.
struct Handles {
  Handles(size_t bytes, size_t count) : bytes(bytes) {
    const CUmemAllocationProp prop = device_memory();
    for (size_t i = 0; i < count; ++i) {
      CUmemGenericAllocationHandle handle = 0;
      create_us.push_back(timed_us([&] { OK(cu.cuMemCreate(&handle, bytes, &prop, 0)); }));
      at.push_back(handle);
    }
  }
  ~Handles() {
    for (const CUmemGenericAllocationHandle handle : at) cu.cuMemRelease(handle);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  size_t bytes;
  std::vector<CUmemGenericAllocationHandle> at;
  std::vector<double> create_us;
};

// Reserved addresses, which are freed at the end. Mappings must be removed before.
struct Addresses {
  explicit Addresses(size_t bytes) : bytes(bytes) {
    reserve_us = timed_us([&] { OK(cu.cuMemAddressReserve(&base, bytes, 0, 0, 0)); });
  }
  ~Addresses() { cu.cuMemAddressFree(base, bytes); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  CUdeviceptr base = 0;
  size_t bytes;
  double reserve_us = 0;
};

}  // namespace measure
