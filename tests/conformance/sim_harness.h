// Helpers for tests of features that only the simulator has. Each check has a fresh driver.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "../core/cases.h"
#include "simcuda/simcuda.h"

struct Failed {
  std::string why;
};

inline void expect(int got, int wanted, const char* what, int line) {
  if (got == wanted) return;
  char message[512] = "";
  simcuda_last_message(message, sizeof message);
  throw Failed{"line " + std::to_string(line) + ": " + what + " returned " + std::to_string(got) +
               ", not " + std::to_string(wanted) + " (" + message + ")"};
}

#define OK(call) expect((call), CUDA_SUCCESS, #call, __LINE__)
#define GIVES(code, call) expect((call), (code), #call, __LINE__)
#define TRUE(condition)                                                                       \
  do {                                                                                        \
    if (!(condition)) throw Failed{"line " + std::to_string(__LINE__) + ": not " #condition}; \
  } while (0)

constexpr size_t kGranule = size_t{2} << 20;

using Settings = std::initializer_list<std::pair<const char*, const char*>>;

// A fresh driver with these options. The primary context of device 0 is current.
struct Sim {
  explicit Sim(Settings settings) : Sim(std::vector<Settings::value_type>(settings)) {}
  explicit Sim(const std::vector<Settings::value_type>& settings) {
    simcuda_reset();
    for (const auto& [key, value] : settings) OK(simcuda_configure(key, value));
    OK(cuInit(0));
    use(0);
  }
  ~Sim() { simcuda_reset(); }
  Sim(const Sim&) = delete;
  Sim& operator=(const Sim&) = delete;
  void use(int device) {
    CUcontext context = nullptr;
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
  }
};

inline CUcontext context_of(int device) {
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, device));
  return context;
}

inline CUmemAllocationProp device_memory(int device, bool exportable = false) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  if (exportable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

inline CUresult grant(CUdeviceptr at, size_t bytes, int device) {
  CUmemAccessDesc desc{};
  desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  desc.location.id = device;
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return cuMemSetAccess(at, bytes, &desc, 1);
}

// A reserved range with memory of `device` behind it, granted to it. Lives as long as the driver.
struct Mapped {
  explicit Mapped(size_t bytes, int device = 0) : bytes(bytes) {
    const CUmemAllocationProp prop = device_memory(device);
    OK(cuMemCreate(&handle, bytes, &prop, 0));
    OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    OK(cuMemMap(at, bytes, 0, handle, 0));
    OK(grant(at, bytes, device));
  }
  void free() {
    OK(cuMemUnmap(at, bytes));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(at, bytes));
  }
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  size_t bytes;
};

// Pinned host memory. Lives as long as the driver.
struct Host {
  explicit Host(size_t bytes) { OK(cuMemHostAlloc(&at, bytes, 0)); }
  unsigned char* bytes() const { return static_cast<unsigned char*>(at); }
  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(at); }
  std::atomic<unsigned>* word() const { return static_cast<std::atomic<unsigned>*>(at); }
  void* at = nullptr;
};

inline CUstream new_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, flags));
  return stream;
}

inline CUevent new_event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
  CUevent event = nullptr;
  OK(cuEventCreate(&event, flags));
  return event;
}

inline std::string ledger(int device = 0) {
  std::string text(4096, '\0');
  text.resize(simcuda_ledger(device, text.data(), text.size()));
  return text;
}

// A number of the ledger, by its key; -1: there is no such key.
inline long ledger_of(const char* key, int device = 0) {
  const std::string text = ledger(device), name = std::string("\"") + key + "\": ";
  const size_t at = text.find(name);
  return at == std::string::npos ? -1 : std::stol(text.substr(at + name.size()));
}

inline std::string violations(bool clear = true) {
  std::string text(65536, '\0');
  text.resize(simcuda_violations(text.data(), text.size(), clear));
  return text;
}

struct Check {
  const char* name;
  void (*run)();
};

// Runs the checks that the command line chooses (core/cases.h). Prints a line per check and the
// sums; returns main()'s exit code.
inline int run_checks(int argc, char** argv, const std::vector<Check>& checks) {
  const test::Choice choice(argc, argv);
  choice.refuse_others();
  int passed = 0, failed = 0;
  for (const Check& check : checks) {
    if (!choice.takes(check.name)) continue;
    try {
      check.run();
      std::printf("%s: ok\n", check.name);
      ++passed;
    } catch (const Failed& failure) {
      std::printf("%s: FAILED %s\n", check.name, failure.why.c_str());
      ++failed;
    }
    std::fflush(stdout);
  }
  if (!choice.list) std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
