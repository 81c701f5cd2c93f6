// Graphs. The driver does what it supports (simcuda/driver/entry_graph.cpp). All other calls return
// cudaErrorNotSupported. Most of them build graphs by hand or make conditional nodes.
#include "cudart.h"

using namespace cudart;  // NOLINT: this file is nothing but C face

CUDART(cudaGraphCreate)(CUgraph* graph, unsigned flags) {
  CUDART_READY();
  return OPTIONAL(cuGraphCreate, graph, flags);
}

CUDART(cudaGraphDestroy)(CUgraph graph) {
  CUDART_READY();
  return told(driver().cuGraphDestroy(graph));
}

CUDART(cudaGraphGetNodes)(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  CUDART_READY();
  return OPTIONAL(cuGraphGetNodes, graph, nodes, count);
}

CUDART(cudaGraphNodeGetType)(CUgraphNode node, int* type) {
  CUDART_READY();
  return OPTIONAL(cuGraphNodeGetType, node, type);
}

CUDART(cudaGraphDebugDotPrint)(CUgraph graph, const char* path, unsigned flags) {
  CUDART_READY();
  return OPTIONAL(cuGraphDebugDotPrint, graph, path, flags);
}

#if CUDART_MAJOR >= 13
CUDART(cudaGraphNodeGetDependencies)
(CUgraphNode node, CUgraphNode* dependencies, void* edges, size_t* count) {
  CUDART_READY();
  return OPTIONAL(cuGraphNodeGetDependencies, node, dependencies, edges, count);
}

CUDART(cudaGraphAddNode)
(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, const void* edges, size_t count,
 void* parameters) {
  CUDART_READY();
  return OPTIONAL(cuGraphAddNode, node, graph, dependencies, edges, count, parameters);
}
#else
CUDART(cudaGraphNodeGetDependencies)(CUgraphNode node, CUgraphNode* dependencies, size_t* count) {
  CUDART_READY();
  return OPTIONAL(cuGraphNodeGetDependencies, node, dependencies, nullptr, count);
}

CUDART(cudaGraphAddNode)
(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
 void* parameters) {
  CUDART_READY();
  return OPTIONAL(cuGraphAddNode, node, graph, dependencies, nullptr, count, parameters);
}
#endif

// A conditional handle is made in a context. The driver asks which one, and the runtime takes the
// current one.
CUDART(cudaGraphConditionalHandleCreate)
(cuuint64_t* handle, CUgraph graph, unsigned value, unsigned flags) {
  CUDART_READY();
  CUcontext context = nullptr;
  const CUresult result = driver().cuCtxGetCurrent(&context);
  if (result != CUDA_SUCCESS) return told(result);
  return OPTIONAL(cuGraphConditionalHandleCreate, handle, graph, context, value, flags);
}

CUDART(cudaGraphInstantiateWithFlags)
(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  CUDART_READY();
  return OPTIONAL(cuGraphInstantiateWithFlags, executable, graph, flags);
}

CUDART(cudaGraphInstantiate)
(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  CUDART_READY();
  return OPTIONAL(cuGraphInstantiateWithFlags, executable, graph, flags);
}

CUDART(cudaGraphUpload)(CUgraphExec executable, CUstream stream) {
  CUDART_READY();
  return OPTIONAL(cuGraphUpload, executable, stream);
}

CUDART(cudaGraphLaunch)(CUgraphExec executable, CUstream stream) {
  CUDART_READY();
  return OPTIONAL(cuGraphLaunch, executable, stream);
}

CUDART(cudaGraphExecDestroy)(CUgraphExec executable) {
  CUDART_READY();
  return OPTIONAL(cuGraphExecDestroy, executable);
}

CUDART(cudaUserObjectCreate)
(CUuserObject* object, void* pointer, HostFunction destroy, unsigned count, unsigned flags) {
  CUDART_READY();
  return OPTIONAL(cuUserObjectCreate, object, pointer, destroy, count, flags);
}

CUDART(cudaUserObjectRelease)(CUuserObject object, unsigned count) {
  CUDART_READY();
  return OPTIONAL(cuUserObjectRelease, object, count);
}

CUDART(cudaUserObjectRetain)(CUuserObject object, unsigned count) {
  CUDART_READY();
  return OPTIONAL(cuUserObjectRetain, object, count);
}

CUDART(cudaGraphRetainUserObject)
(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  CUDART_READY();
  return OPTIONAL(cuGraphRetainUserObject, graph, object, count, flags);
}

CUDART(cudaGraphReleaseUserObject)(CUgraph graph, CUuserObject object, unsigned count) {
  CUDART_READY();
  return OPTIONAL(cuGraphReleaseUserObject, graph, object, count);
}
