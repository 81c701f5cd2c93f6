// The driver under test. Its library is opened by name, and each function is taken at the version
// that cuda.h declares. This file also has the small harness for checks by name.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../core/cases.h"

// Both versions of the function have this signature. Older drivers have only the first version.
#undef cuEventElapsedTime
extern "C" CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end);

// clang-format off
#define CONFORMANCE_SYMBOLS(X)                                                                    \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGetCount)       \
  X(cuDeviceGetAttribute) X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain)                    \
  X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxGetState) X(cuCtxSetCurrent)                   \
  X(cuCtxGetCurrent) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetDevice)                     \
  X(cuCtxSynchronize) X(cuCtxEnablePeerAccess) X(cuCtxDisablePeerAccess) X(cuMemGetInfo)          \
  X(cuMemGetAllocationGranularity) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate)      \
  X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAccess)                   \
  X(cuMemRetainAllocationHandle) X(cuMemGetAllocationPropertiesFromHandle)                        \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemAlloc) X(cuMemFree)    \
  X(cuMemGetAddressRange) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostRegister)                 \
  X(cuMemHostUnregister) X(cuMemHostGetDevicePointer) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle)  \
  X(cuIpcCloseMemHandle) X(cuPointerGetAttribute) X(cuMemcpyAsync) X(cuMemcpyPeerAsync)           \
  X(cuMemcpyHtoD) X(cuMemcpyDtoH) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync)  \
  X(cuMemsetD8Async) X(cuMemsetD32Async) X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamQuery)    \
  X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamBeginCapture) X(cuStreamEndCapture)       \
  X(cuStreamIsCapturing) X(cuThreadExchangeStreamCaptureMode) X(cuGraphDestroy)                   \
  X(cuStreamWriteValue32) X(cuStreamWaitValue32) X(cuLaunchHostFunc) X(cuEventCreate)             \
  X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuEventElapsedTime)  \
  X(cuStreamGetId) X(cuGetProcAddress)
// clang-format on

// Members have the exported names, with a version: the preprocessor makes cu.cuMemAlloc_v2 of
// cu.cuMemAlloc, here and where it is called.
struct CudaTable {
#define X(name) decltype(&::name) name = nullptr;
  CONFORMANCE_SYMBOLS(X)
#undef X

  // The first missing symbol's name; "" when all are there.
  std::string open(const char* library) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return dlerror();
#define CONFORMANCE_TEXT_(name) #name
#define CONFORMANCE_TEXT(name) CONFORMANCE_TEXT_(name)
#define X(name)                                                                   \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, CONFORMANCE_TEXT(name))); \
  if (name == nullptr) return std::string("no symbol ") + CONFORMANCE_TEXT(name);
    CONFORMANCE_SYMBOLS(X)
#undef X
    return "";
  }
};

extern CudaTable cu;

struct Failed {
  std::string why;
};
struct Skipped {
  std::string why;
};

inline std::string name_of(CUresult result) {
  const char* name = nullptr;
  cu.cuGetErrorName(result, &name);
  return name == nullptr ? std::to_string(result) : name;
}

inline void expect(CUresult got, CUresult wanted, const char* what, int line) {
  if (got == wanted) return;
  throw Failed{"line " + std::to_string(line) + ": " + what + " returned " + name_of(got) +
               ", not " + name_of(wanted)};
}

#define OK(call) expect((call), CUDA_SUCCESS, #call, __LINE__)
#define GIVES(code, call) expect((call), (code), #call, __LINE__)
#define FAILS(call)                                                               \
  do {                                                                            \
    if ((call) == CUDA_SUCCESS)                                                   \
      throw Failed{"line " + std::to_string(__LINE__) + ": " #call " succeeded"}; \
  } while (0)
#define TRUE(condition)                                                                       \
  do {                                                                                        \
    if (!(condition)) throw Failed{"line " + std::to_string(__LINE__) + ": not " #condition}; \
  } while (0)
#define SKIP_UNLESS(condition, why)       \
  do {                                    \
    if (!(condition)) throw Skipped{why}; \
  } while (0)

struct Check {
  const char* name;
  void (*run)();
};

// Runs the checks that the command line chooses (core/cases.h). Prints `name: ok|FAILED why|skipped
// why` and the sums; returns the number that failed.
inline int run_checks(int argc, char** argv, const std::vector<Check>& checks) {
  const test::Choice choice(argc, argv);
  choice.refuse_others();
  int passed = 0, failed = 0, skipped = 0;
  for (const Check& check : checks) {
    if (!choice.takes(check.name)) continue;
    try {
      check.run();
      std::printf("%s: ok\n", check.name);
      ++passed;
    } catch (const Failed& failure) {
      std::printf("%s: FAILED %s\n", check.name, failure.why.c_str());
      ++failed;
    } catch (const Skipped& skip) {
      std::printf("%s: skipped %s\n", check.name, skip.why.c_str());
      ++skipped;
    }
    std::fflush(stdout);
  }
  if (!choice.list) std::printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed;
}

// VMM objects. After a failed check their destructors unmap first, then free the range, then
// release the handle.
extern size_t granule;
CUmemAllocationProp device_memory(int device, bool exportable = false);

struct Memory {
  explicit Memory(size_t bytes = granule, int device = 0, bool exportable = false) : bytes(bytes) {
    const CUmemAllocationProp prop = device_memory(device, exportable);
    OK(cu.cuMemCreate(&handle, bytes, &prop, 0));
  }
  ~Memory() { release(); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void release() {
    if (handle != 0) cu.cuMemRelease(handle);
    handle = 0;
  }
  CUmemGenericAllocationHandle handle = 0;
  size_t bytes;
};

struct Range {
  explicit Range(size_t bytes) : bytes(bytes) { OK(cu.cuMemAddressReserve(&base, bytes, 0, 0, 0)); }
  ~Range() {
    for (const auto& [at, size] : mapped) cu.cuMemUnmap(at, size);
    cu.cuMemAddressFree(base, bytes);
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  void map(size_t offset, const Memory& memory) {
    OK(cu.cuMemMap(base + offset, memory.bytes, 0, memory.handle, 0));
    mapped.push_back({base + offset, memory.bytes});
  }
  void unmap(size_t offset, size_t size) {
    OK(cu.cuMemUnmap(base + offset, size));
    for (size_t i = mapped.size(); i-- > 0;) {
      if (mapped[i].first >= base + offset && mapped[i].first < base + offset + size) {
        mapped.erase(mapped.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  void grant(size_t offset, size_t size, int device = 0) {
    CUmemAccessDesc desc{};
    desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    desc.location.id = device;
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cu.cuMemSetAccess(base + offset, size, &desc, 1));
  }
  CUdeviceptr base = 0;
  size_t bytes;
  std::vector<std::pair<CUdeviceptr, size_t>> mapped;
};

struct Stream {
  explicit Stream(unsigned flags = CU_STREAM_NON_BLOCKING) { OK(cu.cuStreamCreate(&at, flags)); }
  ~Stream() { cu.cuStreamDestroy(at); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return at; }
  CUstream at = nullptr;
};

struct Event {
  explicit Event(unsigned flags = CU_EVENT_DISABLE_TIMING) { OK(cu.cuEventCreate(&at, flags)); }
  ~Event() { cu.cuEventDestroy(at); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator CUevent() const { return at; }
  CUevent at = nullptr;
};

struct Pinned {
  explicit Pinned(size_t bytes) { OK(cu.cuMemHostAlloc(&at, bytes, 0)); }
  ~Pinned() { cu.cuMemFreeHost(at); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  unsigned char* bytes() const { return static_cast<unsigned char*>(at); }
  void* at = nullptr;
};

inline unsigned word_at(CUdeviceptr address) {
  unsigned value = 0;
  OK(cu.cuMemcpyDtoH(&value, address, sizeof value));
  return value;
}

inline void put_word(CUdeviceptr address, unsigned value) {
  OK(cu.cuMemcpyHtoD(address, &value, sizeof value));
}
