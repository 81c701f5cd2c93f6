// cuDNN's graph interface (cudnnBackend...), by which PyTorch runs convolutions and attention. It
// takes any graph and offers one engine for it. Running the plan is a launch. The plan needs no
// workspace, because what cuDNN's engines take is not published (docs/real.md).
#include <cstdint>
#include <cstdio>

#include "cudnn.h"

namespace {

using namespace standins;  // NOLINT

// The few values of cudnnBackendAttributeName_t that are read back.
enum Attribute : int {
  kHeuristicResults = 202,
  kConfigEngine = 300,
  kConfigIntermediates = 301,
  kConfigKnobs = 302,
  kConfigWorkspace = 303,
  kConfigSharedMemory = 304,
  kPlanWorkspace = 402,
  kPlanComputedIntermediates = 403,
  kGraphEngineCount = 802,
  kEngineIndex = 1301,
  kEngineKnobs = 1302,
  kEngineNumericalNotes = 1303,
  kEngineLayouts = 1304,
  kEngineBehaviourNotes = 1305,
};

struct Graph {  // a descriptor of any type
  int type = 0;
};

// The number of values, and the values. Descriptors that the caller has made stay as they are.
int read_back(int attribute, int64_t* count, void* values) {
  switch (attribute) {
    case kHeuristicResults:
    case kConfigEngine:
      *count = 1;
      return kSuccess;
    case kConfigWorkspace:
    case kPlanWorkspace:
    case kEngineIndex:
      *count = 1;
      if (values != nullptr) *static_cast<int64_t*>(values) = 0;
      return kSuccess;
    case kConfigSharedMemory:
      *count = 1;
      if (values != nullptr) *static_cast<int32_t*>(values) = 0;
      return kSuccess;
    case kGraphEngineCount:
      *count = 1;
      if (values != nullptr) *static_cast<int64_t*>(values) = 1;
      return kSuccess;
    case kConfigIntermediates:
    case kConfigKnobs:
    case kPlanComputedIntermediates:
    case kEngineKnobs:
    case kEngineNumericalNotes:
    case kEngineLayouts:
    case kEngineBehaviourNotes:
      *count = 0;
      return kSuccess;
    default:
      char name[64];
      std::snprintf(name, sizeof name, "cudnnBackendGetAttribute(%d)", attribute);
      simcuda_missed("libcudnn", name);
      *count = 0;
      return kNotSupported;
  }
}

}  // namespace

STANDIN_EXPORT int cudnnBackendCreateDescriptor(int type, Graph** descriptor) {
  if (descriptor == nullptr) return kBadParameter;
  *descriptor = new Graph{type};
  return kSuccess;
}

STANDIN_EXPORT int cudnnBackendDestroyDescriptor(Graph* descriptor) {
  delete descriptor;
  return kSuccess;
}

STANDIN_EXPORT int cudnnBackendSetAttribute(Graph* descriptor, int, int, int64_t, const void*) {
  return descriptor == nullptr ? kBadParameter : kSuccess;
}

STANDIN_EXPORT int cudnnBackendGetAttribute(const Graph* descriptor, int attribute, int, int64_t,
                                            int64_t* count, void* values) {
  int64_t unused = 0;
  if (descriptor == nullptr) return kBadParameter;
  return read_back(attribute, count == nullptr ? &unused : count, values);
}

STANDIN_EXPORT int cudnnBackendFinalize(Graph* descriptor) {
  return descriptor == nullptr ? kBadParameter : kSuccess;
}

STANDIN_EXPORT int cudnnBackendExecute(Handle* handle, const Graph*, const Graph*) {
  return cudnn_launch("cudnnBackendExecute", handle);
}
