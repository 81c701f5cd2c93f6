// Tests what a capture records, and that each launch of the graph does all of it in order.
#include <cstring>
#include <fstream>
#include <sstream>

#include "sim_harness.h"
#include "simcuda/driver/runtime.h"

// These versions are tested, whichever cuda.h declares.
extern "C" CUresult cuGraphNodeGetDependencies_v2(CUgraphNode, CUgraphNode*, CUgraphEdgeData*,
                                                  size_t*);
extern "C" CUresult cuStreamUpdateCaptureDependencies_v2(CUstream, CUgraphNode*,
                                                         const CUgraphEdgeData*, size_t, unsigned);
extern "C" CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus*, cuuint64_t*,
                                              CUgraph*, const CUgraphNode**, size_t*);

namespace {

CUgraph end(CUstream stream) {
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(stream, &graph));
  return graph;
}

void begin(CUstream stream) { OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL)); }

CUgraphExec instance_of(CUgraph graph) {
  CUgraphExec made = nullptr;
  OK(cuGraphInstantiateWithFlags(&made, graph, 0));
  return made;
}

std::vector<CUgraphNode> nodes_of(CUgraph graph) {
  size_t count = 0;
  OK(cuGraphGetNodes(graph, nullptr, &count));
  std::vector<CUgraphNode> nodes(count + 1);
  size_t room = count + 1;
  OK(cuGraphGetNodes(graph, nodes.data(), &room));
  TRUE(room == count && nodes[count] == nullptr);
  nodes.pop_back();
  return nodes;
}

CUgraphNodeType type_of(CUgraphNode node) {
  CUgraphNodeType type{};
  OK(cuGraphNodeGetType(node, &type));
  return type;
}

unsigned word_at(CUdeviceptr at) {
  unsigned value = 0;
  OK(cuMemcpyDtoH(&value, at, sizeof value));
  return value;
}

// Each launch copies the bytes that are there when it runs. The capture copies nothing.
void check_replays_do_the_work(const char* schedule) {
  const Sim sim({{"schedule", schedule}});
  Mapped memory(kGranule);
  const Host host(4096);
  CUstream stream = new_stream();
  OK(cuMemsetD32(memory.at, 0, 4));
  OK(cuCtxSynchronize());
  *host.word() = 7;
  begin(stream);
  OK(cuMemcpyHtoDAsync(memory.at, host.at, 4, stream));
  OK(cuMemcpyDtoDAsync(memory.at + 4, memory.at, 4, stream));
  OK(cuMemsetD32Async(memory.at + 8, 5, 1, stream));
  CUgraph graph = end(stream);
  CUgraphExec instance = instance_of(graph);
  OK(cuGraphUpload(instance, stream));
  OK(cuStreamSynchronize(stream));
  TRUE(word_at(memory.at) == 0 && word_at(memory.at + 8) == 0);
  OK(cuGraphDestroy(graph));  // the instance is a snapshot
  for (unsigned value : {7u, 8u}) {
    *host.word() = value;
    OK(cuMemsetD32Async(memory.at, 0, 4, stream));
    OK(cuGraphLaunch(instance, stream));
    OK(cuStreamSynchronize(stream));
    TRUE(word_at(memory.at) == value && word_at(memory.at + 4) == value);
    TRUE(word_at(memory.at + 8) == 5);
  }
  OK(cuGraphExecDestroy(instance));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(instance, stream));
  TRUE(ledger_of("graphs") == 0);
}

// Launches run late, as all work does. Each runs after the one before, whatever their streams.
void check_order_of_launches() {
  for (const char* seed : {"1", "2", "3", "4", "5", "6"}) {
    const Sim sim({{"seed", seed}});
    Mapped memory(kGranule);
    CUstream stream = new_stream(), other = new_stream();
    OK(cuMemsetD32(memory.at, 1, 1));
    OK(cuMemsetD32(memory.at + 4, 0, 64));
    OK(cuCtxSynchronize());
    begin(stream);  // each launch moves each word to the next place
    for (unsigned i = 4; i > 0; --i) {
      OK(cuMemcpyDtoDAsync(memory.at + 4 * i, memory.at + 4 * (i - 1), 4, stream));
    }
    CUgraphExec instance = instance_of(end(stream));
    OK(cuGraphLaunch(instance, stream));
    OK(cuGraphLaunch(instance, other));
    OK(cuGraphLaunch(instance, stream));
    TRUE(*reinterpret_cast<unsigned*>(memory.at + 4) == 0);  // not before the host waits
    OK(cuMemsetD32Async(memory.at + 20, 9, 1, stream));
    OK(cuMemcpyDtoDAsync(memory.at + 24, memory.at + 12, 4, stream));
    OK(cuStreamSynchronize(stream));
    TRUE(word_at(memory.at + 12) == 1 && word_at(memory.at + 16) == 0);
    TRUE(word_at(memory.at + 24) == 1);
  }
}

// A fork and its join, by events. Branches have no order. Work after the join runs after both.
void check_forks() {
  for (const char* seed : {"1", "2", "3", "4", "5", "6"}) {
    const Sim sim({{"seed", seed}});
    Mapped memory(kGranule);
    CUstream stream = new_stream(), side = new_stream();
    CUevent fork = new_event(), join = new_event();
    begin(stream);
    OK(cuMemsetD32Async(memory.at, 3, 1, stream));
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(side, fork, 0));
    OK(cuMemcpyDtoDAsync(memory.at + 4, memory.at, 4, side));
    OK(cuMemcpyDtoDAsync(memory.at + 8, memory.at, 4, stream));
    OK(cuEventRecord(join, side));
    OK(cuStreamWaitEvent(stream, join, 0));
    OK(cuMemcpyDtoDAsync(memory.at + 16, memory.at + 4, 8, stream));
    CUgraph graph = end(stream);
    const std::vector<CUgraphNode> nodes = nodes_of(graph);
    TRUE(nodes.size() == 4 && type_of(nodes[0]) == CU_GRAPH_NODE_TYPE_MEMSET);
    TRUE(type_of(nodes[3]) == CU_GRAPH_NODE_TYPE_MEMCPY);
    CUgraphNode before[2] = {};
    size_t count = 2;
    OK(cuGraphNodeGetDependencies_v2(nodes[3], before, nullptr, &count));
    TRUE(count == 2 && before[0] == nodes[1] && before[1] == nodes[2]);
    size_t roots = 0;
    OK(cuGraphGetRootNodes(graph, nullptr, &roots));
    TRUE(roots == 1);
    CUgraphExec instance = instance_of(graph);
    OK(cuMemsetD32(memory.at, 0, 8));
    OK(cuCtxSynchronize());
    OK(cuGraphLaunch(instance, stream));
    OK(cuStreamSynchronize(stream));
    TRUE(word_at(memory.at + 16) == 3 && word_at(memory.at + 20) == 3);
  }
}

void check_unjoined_work_fails() {
  const Sim sim({});
  Mapped memory(kGranule);
  CUstream stream = new_stream(), side = new_stream();
  CUevent fork = new_event();
  begin(stream);
  OK(cuEventRecord(fork, stream));
  OK(cuStreamWaitEvent(side, fork, 0));
  OK(cuMemsetD32Async(memory.at, 3, 1, side));
  CUgraph graph = nullptr;
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
  TRUE(graph == nullptr && ledger_of("graphs") == 0);
  OK(cuMemsetD32Async(memory.at, 3, 1, side));  // no longer captured
  OK(cuStreamSynchronize(side));
  TRUE(word_at(memory.at) == 3);
}

// If memory has been unmapped since the capture, the launch is an error, as on a GPU. The same
// holds for pinned memory that has been freed.
void check_memory_that_is_gone() {
  const Sim sim({});
  Mapped memory(kGranule), other(kGranule);
  Host host(4096);
  CUstream stream = new_stream();
  begin(stream);
  OK(cuMemsetD32Async(memory.at, 3, 1, stream));
  CUgraphExec instance = instance_of(end(stream));
  begin(stream);
  OK(cuMemcpyHtoDAsync(other.at, host.at, 64, stream));
  CUgraphExec upload = instance_of(end(stream));
  OK(cuGraphLaunch(instance, stream));
  OK(cuStreamSynchronize(stream));
  TRUE(violations() == "[]");
  OK(cuGraphLaunch(instance, stream));
  OK(cuMemUnmap(memory.at, memory.bytes));
  TRUE(violations().find("unmap under pending work") != std::string::npos);
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
  TRUE(violations().find("access to unmapped memory") != std::string::npos);
  OK(cuMemFreeHost(host.at));
  OK(cuGraphLaunch(upload, stream));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
  TRUE(violations().find("pinned host memory when it was captured") != std::string::npos);
}

std::string launches(bool clear) {
  std::string text(4096, '\0');
  text.resize(simcuda_launches(text.data(), text.size(), clear));
  return text;
}

void count_up(void* data) { ++*static_cast<int*>(data); }

// Kernels of a graph are counted at each launch, and its host functions run then.
void check_kernels_and_host_functions() {
  const Sim sim({});
  CUstream stream = new_stream();
  launches(true);
  int times = 0;
  begin(stream);
  OK(simcuda_launch("square", stream));
  OK(cuLaunchHostFunc(stream, count_up, &times));
  CUgraph graph = end(stream);
  const std::vector<CUgraphNode> nodes = nodes_of(graph);
  TRUE(nodes.size() == 2 && type_of(nodes[0]) == CU_GRAPH_NODE_TYPE_KERNEL);
  TRUE(type_of(nodes[1]) == CU_GRAPH_NODE_TYPE_HOST);
  CUgraphExec instance = instance_of(graph);
  TRUE(launches(false) == "{}" && times == 0);
  const uint64_t start = simcuda_now_ns();
  for (int i = 0; i < 3; ++i) OK(cuGraphLaunch(instance, stream));
  OK(cuStreamSynchronize(stream));
  TRUE(launches(true) == "{\"square\": 3}" && times == 3);
  TRUE(simcuda_now_ns() > start);  // launches take a kernel's time
  TRUE(simcuda_calls("cuGraphLaunch") == 3);
  const std::string path = "/tmp/simcuda_graph_" + std::to_string(start) + ".dot";
  OK(cuGraphDebugDotPrint(graph, path.c_str(), 0));
  std::ifstream file(path);
  std::stringstream dot;
  dot << file.rdbuf();
  std::remove(path.c_str());
  TRUE(dot.str().find("KERNEL square") != std::string::npos);
  TRUE(dot.str().find("node_0 -> node_1") != std::string::npos);
  GIVES(CUDA_ERROR_OPERATING_SYSTEM, cuGraphDebugDotPrint(graph, "/no/such/place", 0));
  OK(cuGraphDebugDotPrint(graph, "/dev/null", CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDebugDotPrint(graph, "/dev/null", 1u << 31));
}

// The launch of a graph records external event nodes, and waits for them.
void check_external_events() {
  const Sim sim({});
  Mapped memory(kGranule);
  CUstream stream = new_stream(), other = new_stream();
  CUevent done = new_event(), before = new_event();
  begin(stream);
  OK(cuStreamWaitEvent(stream, before, CU_EVENT_WAIT_EXTERNAL));
  OK(cuMemcpyDtoDAsync(memory.at + 4, memory.at, 4, stream));
  OK(cuEventRecordWithFlags(done, stream, CU_EVENT_RECORD_EXTERNAL));
  CUgraph graph = end(stream);
  TRUE(type_of(nodes_of(graph)[0]) == CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  TRUE(type_of(nodes_of(graph)[2]) == CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  CUgraphExec instance = instance_of(graph);
  OK(cuMemsetD32Async(memory.at, 6, 1, other));
  OK(cuEventRecord(before, other));
  OK(cuGraphLaunch(instance, stream));
  OK(cuEventSynchronize(done));
  TRUE(*reinterpret_cast<unsigned*>(memory.at + 4) == 6);
  OK(cuEventDestroy(done));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(instance, stream));
}

// Callers can look at a capture under way, and add to it.
void check_captures_under_way() {
  const Sim sim({});
  Mapped memory(kGranule);
  CUstream stream = new_stream();
  begin(stream);
  OK(cuMemsetD32Async(memory.at, 3, 1, stream));
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* last = nullptr;
  size_t count = 0;
  OK(cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &last, &count));
  TRUE(graph != nullptr && count == 1 && type_of(*last) == CU_GRAPH_NODE_TYPE_MEMSET);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph));
  CUgraphNode empty = nullptr;
  OK(cuGraphAddEmptyNode(&empty, graph, last, count));
  OK(cuStreamUpdateCaptureDependencies_v2(stream, &empty, nullptr, 1,
                                          CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  OK(cuMemsetD32Async(memory.at, 4, 1, stream));
  TRUE(end(stream) == graph);
  const std::vector<CUgraphNode> nodes = nodes_of(graph);
  CUgraphNode before = nullptr;
  count = 1;
  OK(cuGraphNodeGetDependencies_v2(nodes[2], &before, nullptr, &count));
  TRUE(nodes.size() == 3 && before == empty);
  GIVES(CUDA_ERROR_ILLEGAL_STATE,
        cuStreamUpdateCaptureDependencies_v2(stream, nullptr, nullptr, 0, 0));
  OK(cuGraphDestroy(graph));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetType(nodes[0], nullptr));
  CUgraphNodeType type{};
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetType(nodes[0], &type));
}

void check_refusals() {
  const Sim sim({});
  CUstream stream = new_stream(), other = new_stream();
  begin(stream);
  OK(simcuda_launch("square", stream));
  CUgraph graph = end(stream), none = nullptr;
  CUgraphExec instance = instance_of(graph);
  begin(other);
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGraphLaunch(instance, other));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuGraphLaunch(instance, other));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(other, &none));
  TRUE(none == nullptr && ledger_of("graphs") == 1);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&instance, graph, 1 << 20));
  GIVES(CUDA_ERROR_NOT_SUPPORTED,
        cuGraphInstantiateWithFlags(&instance, graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  OK(cuGraphInstantiateWithParams(&instance, graph, &params));
  TRUE(params.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
  OK(cuGraphDestroy(graph));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphInstantiateWithFlags(&instance, graph, 0));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphDestroy(graph));
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(
      argc, argv,
      {
          {"replays do the work, lazily", [] { check_replays_do_the_work("lazy"); }},
          {"replays do the work, by threads", [] { check_replays_do_the_work("threaded"); }},
          {"launches are ordered", check_order_of_launches},
          {"forks and joins", check_forks},
          {"unjoined work fails the capture", check_unjoined_work_fails},
          {"memory that is gone", check_memory_that_is_gone},
          {"kernels and host functions", check_kernels_and_host_functions},
          {"external events", check_external_events},
          {"captures under way", check_captures_under_way},
          {"what is refused", check_refusals},
      });
}
