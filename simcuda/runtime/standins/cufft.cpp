// libcufft: plans with a work area. A transform is a launch.
#include <cuda.h>

#include <map>
#include <mutex>

#include "handles.h"
#include "standin.h"

#define STANDIN_LIBRARY "libcufft"

namespace {

enum Status : int {  // cufftResult
  kSuccess = 0,
  kInvalidPlan = 1,
  kInvalidValue = 4,
  kExecFailed = 6,
  kNotSupported = 16,
};
#define STANDIN_UNSUPPORTED kNotSupported

struct Plans {
  std::mutex mutex;
  std::map<int, CUstream> streams;  // by plan
  int next = 1;
};

Plans& plans() {
  static auto* kept = new Plans;
  return *kept;
}

}  // namespace

STANDIN_EXPORT int cufftCreate(int* plan) {
  if (plan == nullptr) return kInvalidValue;
  std::lock_guard<std::mutex> lock(plans().mutex);
  *plan = plans().next++;
  plans().streams[*plan] = nullptr;
  return kSuccess;
}

STANDIN_EXPORT int cufftDestroy(int plan) {
  std::lock_guard<std::mutex> lock(plans().mutex);
  return plans().streams.erase(plan) == 1 ? kSuccess : kInvalidPlan;
}

STANDIN_EXPORT int cufftSetStream(int plan, CUstream stream) {
  std::lock_guard<std::mutex> lock(plans().mutex);
  const auto found = plans().streams.find(plan);
  if (found == plans().streams.end()) return kInvalidPlan;
  found->second = stream;
  return kSuccess;
}

// In PyTorch the work area is the caller's: cufftSetAutoAllocation(plan, 0).
STANDIN_EXPORT int cufftSetAutoAllocation(int, int) { return kSuccess; }
STANDIN_EXPORT int cufftSetWorkArea(int, void*) { return kSuccess; }

// "cuFFT ... may use a temporary buffer of batch * n0 * ... * sizeof(cufftComplex)": cuFFT API,
// work area estimation. This takes one such buffer of double complex numbers, whatever the type.
STANDIN_EXPORT int cufftXtMakePlanMany(int plan, int rank, long long* sizes, long long*, long long,
                                       long long, int, long long*, long long, long long, int,
                                       long long batch, size_t* work_bytes, int) {
  constexpr size_t kElement = 16;
  if (sizes == nullptr || rank < 1 || rank > 3) return kInvalidValue;
  size_t elements = static_cast<size_t>(batch);
  for (int i = 0; i < rank; ++i) elements *= static_cast<size_t>(sizes[i]);
  if (work_bytes != nullptr) *work_bytes = elements * kElement;
  std::lock_guard<std::mutex> lock(plans().mutex);
  return plans().streams.count(plan) == 1 ? kSuccess : kInvalidPlan;
}

STANDIN_EXPORT int cufftXtExec(int plan, void*, void*, int) {
  CUstream stream = nullptr;
  {
    std::lock_guard<std::mutex> lock(plans().mutex);
    const auto found = plans().streams.find(plan);
    if (found == plans().streams.end()) return kInvalidPlan;
    stream = found->second;
  }
  return standins::launch_by_runtime("cufftXtExec", stream) == CUDA_SUCCESS ? kSuccess
                                                                            : kExecFailed;
}

#include "kinds.h"
#include "simcuda/runtime/standins/lists/cufft.def"
