// libcurand: generators and their streams. Making numbers is a launch, which makes none.
#include "context.h"
#include "handles.h"

#define STANDIN_LIBRARY "libcurand"
#define STANDIN_UNSUPPORTED 999  // CURAND_STATUS_INTERNAL_ERROR: cuRAND has no "not supported"

namespace {

enum Status : int {  // curandStatus_t
  kSuccess = 0,
  kNotInitialized = 101,
  kOutOfRange = 104,
  kLaunchFailure = 201,
  kInitializationFailed = 203,
};

int launch(const char* name, standins::Handle* generator) {
  if (generator == nullptr) return kNotInitialized;
  return standins::launch_by_runtime(name, generator->stream) == CUDA_SUCCESS ? kSuccess
                                                                              : kLaunchFailure;
}
#define STANDIN_LAUNCH launch

}  // namespace

STANDIN_EXPORT int curandCreateGenerator(standins::Handle** generator, int) {
  if (!standins::has_context()) return kInitializationFailed;
  return standins::create(generator, kOutOfRange);
}
STANDIN_EXPORT int curandDestroyGenerator(standins::Handle* generator) {
  return generator == nullptr ? kNotInitialized : standins::destroy(generator);
}
STANDIN_EXPORT int curandSetStream(standins::Handle* generator, CUstream stream) {
  return standins::set_stream(generator, stream, kNotInitialized);
}
STANDIN_EXPORT int curandGetVersion(int* version) {
  if (version == nullptr) return kOutOfRange;
  *version = 10400;
  return kSuccess;
}

#include "kinds.h"
#include "simcuda/runtime/standins/lists/curand.def"
