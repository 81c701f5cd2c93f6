// cuGetProcAddress: the newest version of a symbol that the caller's CUDA version knows.
#include <cstring>

#include "driver.h"
#include "prototypes.h"
#include "symbols.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

struct Export {
  const char* base;
  int since;
  void* function;
};

// A base name may have several rows, one for each version of its function.
const Export kExports[] = {
#define X(base, exported, since, first, further) {#base, since, reinterpret_cast<void*>(&exported)},
    SIMCUDA_CALLS(X)
#undef X
        {"cuGraphInstantiate", 12000, reinterpret_cast<void*>(&cuGraphInstantiateWithFlags)},
    {"cuDeviceGetUuid", 9020, reinterpret_cast<void*>(&cuDeviceGetUuid)},
    {"cuEventElapsedTime", 12080, reinterpret_cast<void*>(&cuEventElapsedTime_v2)},
    {"cuStreamGetCaptureInfo", 12030, reinterpret_cast<void*>(&cuStreamGetCaptureInfo_v3)},
    {"cuMemcpyBatchAsync", 13000, reinterpret_cast<void*>(&cuMemcpyBatchAsync_v2)},
    {"cuGetProcAddress", 11030, reinterpret_cast<void*>(&cuGetProcAddress)},
};

}  // namespace

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  const CUresult told = books().enter(CALL(cuGetProcAddress), 0);
  if (told != CUDA_SUCCESS) return told;
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  if (version > kDriverVersion) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuGetProcAddress: version " + std::to_string(version) +
                                              " is above the driver's, " +
                                              std::to_string(kDriverVersion));
  }
  if ((flags & ~cuuint64_t{CU_GET_PROC_ADDRESS_LEGACY_STREAM |
                           CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM}) != 0) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "cuGetProcAddress: unknown bits in flags " + std::to_string(flags));
  }
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) {
    return fail(CUDA_ERROR_NOT_SUPPORTED,
                "simcuda has no per-thread default stream variants; use CU_STREAM_PER_THREAD");
  }
  const Export* best = nullptr;
  bool known = false;
  for (const Export& entry : kExports) {
    if (std::strcmp(entry.base, symbol) != 0) continue;
    known = true;
    if (entry.since <= version && (best == nullptr || entry.since > best->since)) best = &entry;
  }
  if (best != nullptr) *function = best->function;
  if (status != nullptr) {
    *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : known         ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                              : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}

// The version of CUDA 11. It has no status, so a symbol that is not there is an error.
CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  const CUresult result = cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
  if (result != CUDA_SUCCESS || *function != nullptr) return result;
  return fail(CUDA_ERROR_NOT_FOUND, std::string("simcuda has no ") + symbol);
}
