// libcufft: plans with a work area. A transform is a launch.
#include <cuda.h>

#include <map>
#include <mutex>

#include "context.h"
#include "handles.h"
#include "standin.h"

#define STANDIN_LIBRARY "libcufft"

namespace {

enum Status : int {  // cufftResult
  kSuccess = 0,
  kInvalidPlan = 1,
  kInvalidValue = 4,
  kExecFailed = 6,
  kSetupFailed = 7,
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
  if (!standins::has_context()) return kSetupFailed;
  std::lock_guard<std::mutex> lock(plans().mutex);
  *plan = plans().next++;
  plans().streams[*plan] = nullptr;
  return kSuccess;
}

STANDIN_EXPORT int cufftDestroy(int plan) {
  std::lock_guard<std::mutex> lock(plans().mutex);
  return plans().streams.erase(plan) == 1 ? kSuccess : kInvalidPlan;
}

STANDIN_EXPORT int cufftGetVersion(int* version) {
  if (version == nullptr) return kInvalidValue;
  *version = 12000;
  return kSuccess;
}

STANDIN_EXPORT int cufftSetStream(int plan, CUstream stream) {
  std::lock_guard<std::mutex> lock(plans().mutex);
  const auto found = plans().streams.find(plan);
  if (found == plans().streams.end()) return kInvalidPlan;
  found->second = stream;
  return kSuccess;
}

// In PyTorch and CuPy the work area is the caller's: cufftSetAutoAllocation(plan, 0).
STANDIN_EXPORT int cufftSetAutoAllocation(int, int) { return kSuccess; }
STANDIN_EXPORT int cufftSetWorkArea(int, void*) { return kSuccess; }

namespace {

// "cuFFT ... may use a temporary buffer of batch * n0 * ... * sizeof(cufftComplex)": cuFFT API,
// work area estimation. This takes one such buffer of double complex numbers, whatever the type.
template <class Size>
int make_plan(int plan, int rank, const Size* sizes, long long batch, size_t* work_bytes) {
  constexpr size_t kElement = 16;
  if (sizes == nullptr || rank < 1 || rank > 3) return kInvalidValue;
  size_t elements = static_cast<size_t>(batch);
  for (int i = 0; i < rank; ++i) elements *= static_cast<size_t>(sizes[i]);
  if (work_bytes != nullptr) *work_bytes = elements * kElement;
  std::lock_guard<std::mutex> lock(plans().mutex);
  return plans().streams.count(plan) == 1 ? kSuccess : kInvalidPlan;
}

int launch(const char* name, int plan) {
  CUstream stream = nullptr;
  {
    std::lock_guard<std::mutex> lock(plans().mutex);
    const auto found = plans().streams.find(plan);
    if (found == plans().streams.end()) return kInvalidPlan;
    stream = found->second;
  }
  return standins::launch_by_runtime(name, stream) == CUDA_SUCCESS ? kSuccess : kExecFailed;
}

}  // namespace

STANDIN_EXPORT int cufftXtMakePlanMany(int plan, int rank, long long* sizes, long long*, long long,
                                       long long, int, long long*, long long, long long, int,
                                       long long batch, size_t* work_bytes, int) {
  return make_plan(plan, rank, sizes, batch, work_bytes);
}
STANDIN_EXPORT int cufftMakePlanMany(int plan, int rank, int* sizes, int*, int, int, int*, int, int,
                                     int, int batch, size_t* work_bytes) {
  return make_plan(plan, rank, sizes, batch, work_bytes);
}
STANDIN_EXPORT int cufftMakePlan1d(int plan, int size, int, int batch, size_t* work_bytes) {
  return make_plan(plan, 1, &size, batch, work_bytes);
}

STANDIN_EXPORT int cufftXtExec(int plan, void*, void*, int) { return launch("cufftXtExec", plan); }
#define EXEC(name) \
  STANDIN_EXPORT int name(int plan) { return launch(#name, plan); }
EXEC(cufftExecC2C)
EXEC(cufftExecC2R)
EXEC(cufftExecD2Z)
EXEC(cufftExecR2C)
EXEC(cufftExecZ2D)
EXEC(cufftExecZ2Z)

#include "kinds.h"
#include "simcuda/runtime/standins/lists/cufft.def"
