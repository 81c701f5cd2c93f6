#include "first_copy.h"

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstring>

#define SEEN __attribute__((visibility("default")))

// The simulator's own function. The header's macro would change its name.
#undef cuGetProcAddress
extern "C" CUresult cuGetProcAddress(const char*, void**, int, cuuint64_t);

namespace {

std::atomic<int64_t> first{0};

void note() {
  if (first.load(std::memory_order_relaxed) != 0) return;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  int64_t none = 0;
  first.compare_exchange_strong(none, std::chrono::nanoseconds(now).count());
}

using Copy = CUresult (*)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
using CopyPeer = CUresult (*)(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream);
Copy real_copy = nullptr;
CopyPeer real_copy_peer = nullptr;

CUresult copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  note();
  return real_copy(dst, src, bytes, stream);
}

CUresult copy_peer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes,
                   CUstream stream) {
  note();
  return real_copy_peer(dst, to, src, from, bytes, stream);
}

template <typename Function>
void replace(void** found, Function* real, Function own) {
  *real = reinterpret_cast<Function>(*found);
  *found = reinterpret_cast<void*>(own);
}

}  // namespace

extern "C" {

SEEN void first_copy_forget() { first = 0; }
SEEN int64_t first_copy_ns() { return first; }

// Functions that are not replaced here come from the simulator, on which this library depends.
SEEN CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                  cuuint64_t flags, CUdriverProcAddressQueryResult* told) {
  const CUresult result = cuGetProcAddress(symbol, function, version, flags);
  const bool found = result == CUDA_SUCCESS && *function != nullptr;
  if (told != nullptr) {
    *told = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  if (!found) return result;
  if (std::strcmp(symbol, "cuMemcpyAsync") == 0) replace(function, &real_copy, copy);
  if (std::strcmp(symbol, "cuMemcpyPeerAsync") == 0) {
    replace(function, &real_copy_peer, copy_peer);
  }
  return CUDA_SUCCESS;
}
}
