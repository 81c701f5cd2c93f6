// libcudnn: handles, versions, batch normalisation and dropout. Graphs and recurrent networks have
// files of their own.
#include "cudnn.h"

#include <cstring>

#define STANDIN_LIBRARY "libcudnn"
#define STANDIN_UNSUPPORTED kNotSupported
#define STANDIN_LAUNCH cudnn_launch

using namespace standins;  // NOLINT: this file is nothing but C face

namespace {
constexpr int kMajor = 9, kMinor = 24, kPatch = 0;
}

STANDIN_EXPORT size_t cudnnGetVersion() { return kMajor * 10000 + kMinor * 100 + kPatch; }
STANDIN_EXPORT size_t cudnnGetCudartVersion() { return 13000; }

// libraryPropertyType: major, minor, patch.
STANDIN_EXPORT int cudnnGetProperty(int which, int* value) {
  if (value == nullptr || which < 0 || which > 2) return kBadParameter;
  *value = which == 0 ? kMajor : which == 1 ? kMinor : kPatch;
  return kSuccess;
}

STANDIN_EXPORT int cudnnCreate(Handle** handle) { return standins::create(handle, kBadParameter); }
STANDIN_EXPORT int cudnnDestroy(Handle* handle) { return standins::destroy(handle); }
STANDIN_EXPORT int cudnnSetStream(Handle* handle, CUstream stream) {
  return standins::set_stream(handle, stream, kBadParameter);
}
STANDIN_EXPORT int cudnnGetStream(Handle* handle, CUstream* stream) {
  if (handle == nullptr || stream == nullptr) return kBadParameter;
  *stream = handle->stream;
  return kSuccess;
}

STANDIN_EXPORT const char* cudnnGetErrorString(int status) {
  return status == kSuccess           ? "CUDNN_STATUS_SUCCESS"
         : status == kNotSupported    ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status == kExecutionFailed ? "CUDNN_STATUS_EXECUTION_FAILED"
                                      : "CUDNN_STATUS_BAD_PARAM";
}

STANDIN_EXPORT void cudnnGetLastErrorString(char* text, size_t capacity) {
  if (text == nullptr || capacity == 0) return;
  std::strncpy(text, "see stderr: it names the function that glake's stand-in does not have",
               capacity - 1);
  text[capacity - 1] = 0;
}

// Descriptors that nobody reads.
#define DESCRIPTOR(name)                                                      \
  STANDIN_EXPORT int cudnnCreate##name##Descriptor(char** descriptor) {       \
    if (descriptor == nullptr) return kBadParameter;                          \
    *descriptor = new char;                                                   \
    return kSuccess;                                                          \
  }                                                                           \
  STANDIN_EXPORT int cudnnDestroy##name##Descriptor(const char* descriptor) { \
    delete descriptor;                                                        \
    return kSuccess;                                                          \
  }
DESCRIPTOR(Activation)
DESCRIPTOR(Dropout)
DESCRIPTOR(SpatialTransformer)

// PyTorch itself keeps all that batch normalisation needs between its passes. Only a fused
// activation would need more, and PyTorch does not request one.
STANDIN_EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(Handle*, int, int,
                                                                            void*, void*, void*,
                                                                            void*, void*,
                                                                            size_t* bytes) {
  if (bytes == nullptr) return kBadParameter;
  *bytes = 0;
  return kSuccess;
}
STANDIN_EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(Handle*, int, int, void*,
                                                                     void*, void*, void*, void*,
                                                                     void*, void*, size_t* bytes) {
  if (bytes == nullptr) return kBadParameter;
  *bytes = 0;
  return kSuccess;
}
STANDIN_EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(Handle*, int, int, void*,
                                                                        void*, size_t* bytes) {
  if (bytes == nullptr) return kBadParameter;
  *bytes = 0;
  return kSuccess;
}

// The size of its random numbers' state: for 2048 threads of each of 132 multiprocessors, at 16
// bytes. Assumed, because cuDNN only documents the call.
STANDIN_EXPORT int cudnnDropoutGetStatesSize(Handle* handle, size_t* bytes) {
  if (handle == nullptr || bytes == nullptr) return kBadParameter;
  *bytes = size_t{2048} * 132 * 16;
  return kSuccess;
}
STANDIN_EXPORT int cudnnSetDropoutDescriptor(void*, Handle* handle, float, void* states, size_t,
                                             unsigned long long) {
  return states == nullptr ? kSuccess : cudnn_launch("cudnnSetDropoutDescriptor", handle);
}

#include "kinds.h"
#include "simcuda/runtime/standins/lists/cudnn.def"
