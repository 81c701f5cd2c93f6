// libcublasLt. Descriptors hold only what a heuristic needs, and a product is a launch.
#include <cuda.h>

#include <cstring>

#include "handles.h"
#include "standin.h"

#define STANDIN_LIBRARY "libcublasLt"

namespace {

enum Status : int { kSuccess = 0, kInvalidValue = 7, kExecutionFailed = 13, kNotSupported = 15 };
#define STANDIN_UNSUPPORTED kNotSupported

// A descriptor of a product, a matrix or a preference. Nobody reads it.
struct Descriptor {};

// cublasLtMatmulHeuristicResult_t, "cublasLt Datatypes Reference".
struct Heuristic {
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

int create(Descriptor** descriptor) {
  if (descriptor == nullptr) return kInvalidValue;
  *descriptor = new Descriptor;
  return kSuccess;
}

int destroy(Descriptor* descriptor) {
  delete descriptor;
  return kSuccess;
}

}  // namespace

STANDIN_EXPORT size_t cublasLtGetVersion() { return 130000; }

STANDIN_EXPORT int cublasLtMatmulDescCreate(Descriptor** it, int, int) { return create(it); }
STANDIN_EXPORT int cublasLtMatmulDescDestroy(Descriptor* it) { return destroy(it); }
STANDIN_EXPORT int cublasLtMatmulDescSetAttribute(Descriptor*, int, const void*, size_t) {
  return kSuccess;
}
STANDIN_EXPORT int cublasLtMatrixLayoutCreate(Descriptor** it, int, uint64_t, uint64_t, int64_t) {
  return create(it);
}
STANDIN_EXPORT int cublasLtMatrixLayoutDestroy(Descriptor* it) { return destroy(it); }
STANDIN_EXPORT int cublasLtMatrixLayoutSetAttribute(Descriptor*, int, const void*, size_t) {
  return kSuccess;
}
STANDIN_EXPORT int cublasLtMatmulPreferenceCreate(Descriptor** it) { return create(it); }
STANDIN_EXPORT int cublasLtMatmulPreferenceDestroy(Descriptor* it) { return destroy(it); }
STANDIN_EXPORT int cublasLtMatmulPreferenceSetAttribute(Descriptor*, int, const void*, size_t) {
  return kSuccess;
}

// There is one algorithm, and it takes no workspace. The caller has a workspace ready in any case.
STANDIN_EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*,
                                                  int wanted, Heuristic* results, int* found) {
  if (results == nullptr || found == nullptr || wanted < 1) return kInvalidValue;
  std::memset(results, 0, sizeof *results);
  results->waves = 1;
  *found = 1;
  return kSuccess;
}

STANDIN_EXPORT int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*,
                                  const void*, const void*, void*, void*, void*, const void*, void*,
                                  size_t, CUstream stream) {
  return standins::launch_by_runtime("cublasLtMatmul", stream) == CUDA_SUCCESS ? kSuccess
                                                                               : kExecutionFailed;
}

#include "kinds.h"
#include "simcuda/runtime/standins/lists/cublasLt.def"
