// Graphs from captures, their instances, and launches. CUDA Driver API, Graph Management. Of the
// calls that build a graph by hand, there is only cuGraphAddEmptyNode.
#include <algorithm>
#include <cstdio>

#include "driver.h"
#include "prototypes.h"
#include "work.h"

using namespace simcuda;  // NOLINT: this file is nothing but simcuda's C face

namespace {

// Handles as cuGraphGetNodes gives them: "If numNodes is higher than the actual number of nodes,
// the remaining entries in nodes will be set to NULL, and the number of nodes actually obtained
// will be returned in numNodes".
CUresult give_nodes(const std::vector<uint64_t>& found, CUgraphNode* nodes, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes == nullptr) {
    *count = found.size();
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) {
    nodes[i] = i < found.size() ? reinterpret_cast<CUgraphNode>(found[i]) : nullptr;
  }
  *count = std::min(*count, found.size());
  return CUDA_SUCCESS;
}

CUresult nodes_of(Symbol symbol, CUgraph handle, CUgraphNode* nodes, size_t* count, bool roots) {
  return locked(symbol, 0, [&](Driver& driver) -> CUresult {
    const Graph* graph = driver.graphs.find(handle);
    if (graph == nullptr) return bad_handle("graph");
    std::vector<uint64_t> found;
    for (const GraphNode& node : graph->nodes) {
      if (!roots || node.after.empty()) found.push_back(node.id);
    }
    return give_nodes(found, nodes, count);
  });
}

CUresult places_of(Driver* driver, const Graph* graph, const CUgraphNode* nodes, size_t count,
                   After* places) {
  if (nodes == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    GraphPtr owner;
    uint32_t place = 0;
    if (driver->graphs.find_node(nodes[i], &owner, &place) == nullptr || owner.get() != graph) {
      return fail(CUDA_ERROR_INVALID_VALUE, "a dependency is not a node of the graph");
    }
    merge(places, {place});
  }
  return CUDA_SUCCESS;
}

CUresult instantiate(Driver* driver, CUgraphExec* result, CUgraph handle,
                     unsigned long long flags) {
  constexpr unsigned long long kKnown =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
      CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  const Graph* graph = driver->graphs.find(handle);
  if (graph == nullptr) return bad_handle("graph");
  if (result == nullptr || (flags & ~kKnown) != 0) {
    return fail(CUDA_ERROR_INVALID_VALUE, "cuGraphInstantiate: flags " + std::to_string(flags));
  }
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
    return fail(CUDA_ERROR_NOT_SUPPORTED, "cuGraphInstantiate: simcuda launches from the host");
  }
  GraphInstance made;
  for (const GraphNode& node : graph->nodes) {
    const int device = node.op->device;
    if (device >= 0 && std::count(made.devices.begin(), made.devices.end(), device) == 0) {
      made.devices.push_back(device);
    }
  }
  made.nodes = std::make_shared<const std::vector<GraphNode>>(graph->nodes);
  if (!graph->objects.empty()) made.objects = std::make_shared<const HeldObjects>(graph->objects);
  *result = reinterpret_cast<CUgraphExec>(driver->graphs.instances().add(std::move(made)));
  return CUDA_SUCCESS;
}

// Finds the events of all nodes. It is called before any work is enqueued, because it may fail.
CUresult find_events(Driver* driver, const std::vector<GraphNode>& nodes,
                     std::vector<Event*>* events) {
  for (const GraphNode& node : nodes) {
    events->push_back(node.event == 0 ? nullptr : driver->streams.events().find(node.event));
    if (node.event != 0 && events->back() == nullptr) return bad_handle("event of the graph");
  }
  return CUDA_SUCCESS;
}

// Without a schedule: the work exists, and ticks complete it.
void tick_graph(Driver* driver, Stream* stream, const std::vector<GraphNode>& nodes,
                const std::vector<Event*>& events) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
      driver->tick_clock.wait(stream, *events[i]);
    } else if (nodes[i].type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
      driver->tick_clock.record(events[i], stream);
    } else {
      driver->tick_clock.work(stream);
    }
  }
}

void enqueue_graph(Driver* driver, Stream* stream, GraphInstance* instance,
                   const std::vector<Event*>& events) {
  std::vector<Scheduler::Ordered> work;
  for (size_t i = 0; i < events.size(); ++i) {
    const GraphNode& node = (*instance->nodes)[i];
    work.push_back({std::make_shared<Op>(*node.op), &node.after, nullptr});
    work.back().op->objects = instance->objects;
    Event* event = events[i];
    if (node.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) work.back().also = event->op;
    if (node.type != CU_GRAPH_NODE_TYPE_EVENT_RECORD) continue;
    event->op = work.back().op;
    event->capture = nullptr;
    event->recorded = true;
    event->stream = stream->id;
  }
  instance->last = driver->scheduler->enqueue_graph(stream, work, instance->last);
}

// "Each launch is ordered behind both any previous work in hStream and any previous launches of
// hGraphExec": cuGraphLaunch.
CUresult launch(Driver* driver, Stream* stream, GraphInstance* instance) {
  bool taken = false;
  CUresult result = driver->captures.take(stream, &taken);
  if (result != CUDA_SUCCESS) return result;
  if (taken) {
    return driver->captures.refuse(
        stream,
        "cuGraphLaunch: simcuda has no graphs within graphs, so none is launched into a "
        "capturing stream");
  }
  std::vector<Event*> events;
  result = find_events(driver, *instance->nodes, &events);
  if (result != CUDA_SUCCESS) return result;
  books().charge_pages(CALL(cuGraphLaunch), events.size());
  for (const GraphNode& node : *instance->nodes) {
    if (node.kernel != nullptr) count_launch(node.kernel);
  }
  if (driver->ticking()) {
    tick_graph(driver, stream, *instance->nodes, events);
  } else {
    enqueue_graph(driver, stream, instance, events);
  }
  return CUDA_SUCCESS;
}

GraphInstance* instance_of(Driver* driver, CUgraphExec handle) {
  return driver->graphs.instances().find(reinterpret_cast<uint64_t>(handle));
}

// No document says that a launch leaves other threads' calls into its nodes' contexts alone.
template <class Body>
CUresult on_instance(Symbol symbol, CUgraphExec handle, CUstream stream, Body&& body) {
  const auto load = [&](Driver& driver) -> DriverLock::Load {
    const GraphInstance* instance = instance_of(&driver, handle);
    if (instance == nullptr) return {};
    return {instance->nodes->size(), instance->devices};
  };
  return on_stream_loaded(symbol, stream, load, [&](Driver& driver, uint64_t id, Lock* lock) {
    GraphInstance* instance = instance_of(&driver, handle);
    if (instance == nullptr) return bad_handle("graph instance");
    const CUresult result = body(driver, *driver.streams.find(id), instance);
    driver.scheduler->waits().make_room(lock);
    return result;
  });
}

const char* type_name(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "HOST";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "WAIT_EVENT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return "BATCH_MEM_OP";
    default:
      return "EMPTY";
  }
}

constexpr unsigned kAllDotFlags = (1u << 18) - 1;  // CUgraphDebugDot_flags of CUDA 13

bool write_dot(const Graph& graph, std::FILE* file) {
  bool ok = std::fputs("digraph dot {\n", file) >= 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode& node = graph.nodes[i];
    const char* name = node.kernel == nullptr ? "" : node.kernel;
    ok = ok && std::fprintf(file, "node_%zu [label=\"%zu %s %s\"];\n", i, i, type_name(node.type),
                            name) >= 0;
    for (const uint32_t before : node.after) {
      ok = ok && std::fprintf(file, "node_%u -> node_%zu;\n", before, i) >= 0;
    }
  }
  return std::fputs("}\n", file) >= 0 && ok;
}

}  // namespace

// "All operations other than destroy and node removal are permitted on the graph while the capture
// sequence is in progress": cuStreamGetCaptureInfo.
CUresult cuGraphDestroy(CUgraph handle) {
  const CUresult result = locked(CALL(cuGraphDestroy), 0, [&](Driver& driver) -> CUresult {
    const Graph* graph = driver.graphs.find(handle);
    if (graph == nullptr) return bad_handle("graph");
    if (graph->open) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuGraphDestroy: a capture is adding to the graph");
    }
    driver.graphs.remove(reinterpret_cast<uint64_t>(handle));
    return CUDA_SUCCESS;
  });
  bury();
  return result;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return nodes_of(CALL(cuGraphGetNodes), graph, nodes, count, false);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return nodes_of(CALL(cuGraphGetRootNodes), graph, nodes, count, true);
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return locked(CALL(cuGraphNodeGetType), 0, [&](Driver& driver) -> CUresult {
    GraphPtr graph;
    const GraphNode* node = driver.graphs.find_node(handle, &graph);
    if (node == nullptr || type == nullptr) return fail(CUDA_ERROR_INVALID_VALUE, "not a node");
    *type = node->type;
    return CUDA_SUCCESS;
  });
}

// Edges of captured work have no data. All are full dependencies, which read as zeros.
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* dependencies,
                                       CUgraphEdgeData* edges, size_t* count) {
  return locked(CALL(cuGraphNodeGetDependencies), 0, [&](Driver& driver) -> CUresult {
    GraphPtr graph;
    const GraphNode* node = driver.graphs.find_node(handle, &graph);
    if (node == nullptr) return fail(CUDA_ERROR_INVALID_VALUE, "not a node");
    std::vector<uint64_t> found;
    for (const uint32_t before : node->after) found.push_back(graph->nodes[before].id);
    const CUresult result = give_nodes(found, dependencies, count);
    // The size of CUgraphEdgeData, which older headers do not define.
    constexpr size_t kEdgeBytes = 8;
    if (result == CUDA_SUCCESS && dependencies != nullptr && edges != nullptr) {
      std::fill_n(reinterpret_cast<char*>(edges), *count * kEdgeBytes, char{0});
    }
    return result;
  });
}

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph handle, const CUgraphNode* dependencies,
                             size_t count) {
  return locked(CALL(cuGraphAddEmptyNode), 0, [&](Driver& driver) -> CUresult {
    const Graph* graph = driver.graphs.find(handle);
    if (graph == nullptr) return bad_handle("graph");
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    GraphNode made;
    const CUresult result = places_of(&driver, graph, dependencies, count, &made.after);
    if (result != CUDA_SUCCESS) return result;
    made.op = std::make_shared<Op>();
    *node = driver.graphs.add_node(driver.graphs.share(handle), std::move(made));
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode* dependencies,
                                              const CUgraphEdgeData* edges, size_t count,
                                              unsigned int flags) {
  return on_stream(
      CALL(cuStreamUpdateCaptureDependencies), handle,
      [&](Driver& driver, Stream& stream) -> CUresult {
        if (stream.capture == nullptr ||
            stream.capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
          return fail(CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing");
        }
        if (edges != nullptr) {
          return fail(CUDA_ERROR_NOT_SUPPORTED, "simcuda's dependencies carry no edge data");
        }
        if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
        After places;
        const Graph* graph = stream.capture->graph.get();
        const CUresult result = places_of(&driver, graph, dependencies, count, &places);
        if (result != CUDA_SUCCESS) return result;
        if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream.after.clear();
        merge(&stream.after, places);
        return CUDA_SUCCESS;
      });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* result, CUgraph graph, unsigned long long flags) {
  return locked(CALL(cuGraphInstantiateWithFlags), 0,
                [&](Driver& driver) { return instantiate(&driver, result, graph, flags); });
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* result, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return locked(CALL(cuGraphInstantiateWithParams), 0, [&](Driver& driver) -> CUresult {
    if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
    params->hErrNode_out = nullptr;
    const CUresult made = instantiate(&driver, result, graph, params->flags);
    params->result_out =
        made == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return made;
  });
}

// There is nothing to do before a launch, because nothing of a simulated graph is sent ahead.
CUresult cuGraphUpload(CUgraphExec instance, CUstream stream) {
  return on_instance(CALL(cuGraphUpload), instance, stream,
                     [&](Driver& driver, Stream& on, GraphInstance*) -> CUresult {
                       bool taken = false;
                       const CUresult result = driver.captures.take(&on, &taken);
                       if (result != CUDA_SUCCESS || !taken) return result;
                       return driver.captures.refuse(&on,
                                                     "cuGraphUpload: not into a capturing stream");
                     });
}

CUresult cuGraphLaunch(CUgraphExec instance, CUstream stream) {
  bury();
  return on_instance(CALL(cuGraphLaunch), instance, stream,
                     [&](Driver& driver, Stream& on, GraphInstance* found) {
                       return launch(&driver, &on, found);
                     });
}

// Launches under way go on: "it will not be terminated, but rather freed asynchronously on
// completion" (cuGraphExecDestroy).
CUresult cuGraphExecDestroy(CUgraphExec handle) {
  const CUresult result = locked(CALL(cuGraphExecDestroy), 0, [&](Driver& driver) -> CUresult {
    const auto id = reinterpret_cast<uint64_t>(handle);
    if (driver.graphs.instances().find(id) == nullptr) return bad_handle("graph instance");
    driver.graphs.instances().remove(id);
    return CUDA_SUCCESS;
  });
  bury();
  return result;
}

// Nothing more is written for a flag: "which additional node information to write" is not promised
// in a form that a program could read.
CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned int flags) {
  return locked(CALL(cuGraphDebugDotPrint), 0, [&](Driver& driver) -> CUresult {
    const Graph* graph = driver.graphs.find(handle);
    if (graph == nullptr) return bad_handle("graph");
    if (path == nullptr || flags > kAllDotFlags) {
      return fail(CUDA_ERROR_INVALID_VALUE, "cuGraphDebugDotPrint: path or flags");
    }
    std::FILE* file = std::fopen(path, "w");
    const bool written = file != nullptr && write_dot(*graph, file);
    if (file != nullptr && std::fclose(file) == 0 && written) return CUDA_SUCCESS;
    return fail(CUDA_ERROR_OPERATING_SYSTEM,
                std::string("cuGraphDebugDotPrint: cannot write ") + path);
  });
}
