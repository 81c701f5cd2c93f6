// Graphs: the work that a capture took, with its order, and instances that are launched many times.
// CUDA Driver API, Graph Management; CUDA C++ Programming Guide, CUDA Graphs.
#pragma once

#include "op.h"
#include "types.h"
#include "user_object.h"

namespace simcuda {

// The captured work that must precede another piece: indices of Graph::nodes, in growing order.
using After = std::vector<uint32_t>;
void merge(After* into, const After& more);

struct GraphNode {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  OpPtr op;                      // as captured; a launch enqueues a copy
  const char* kernel = nullptr;  // a kernel's name, to be counted at each launch
  uint64_t event = 0;            // of an external record or wait
  After after;      // all are lower than its own index, so the nodes can run in their order
  uint64_t id = 0;  // its handle
};

struct Graph {
  std::vector<GraphNode> nodes;
  HeldObjects objects;
  bool open = false;  // a capture is adding to it

  // Whether each of `places` is among `ends` or precedes one of them.
  bool leads(const After& places, const After& ends) const;
};
using GraphPtr = std::shared_ptr<Graph>;

struct NodeRef {
  std::weak_ptr<Graph> graph;
  uint32_t place = 0;
};

// "A graph instance is a snapshot": later changes of its graph do not affect it.
struct GraphInstance {
  std::shared_ptr<const std::vector<GraphNode>> nodes;
  std::shared_ptr<const HeldObjects> objects;  // launches under way hold them too
  OpPtr last;                                  // the end of its last launch
  std::vector<int> devices;                    // whose contexts its nodes are in
};

class Graphs {
 public:
  uint64_t add(GraphPtr graph) { return graphs_.add(std::move(graph)); }
  Graph* find(CUgraph handle) {
    GraphPtr* found = graphs_.find(reinterpret_cast<uint64_t>(handle));
    return found == nullptr ? nullptr : found->get();
  }
  GraphPtr share(CUgraph handle) { return *graphs_.find(reinterpret_cast<uint64_t>(handle)); }
  void remove(uint64_t id);
  CUgraphNode add_node(const GraphPtr& graph, GraphNode node);
  // nullptr: there is no such node, or its graph is gone.
  GraphNode* find_node(CUgraphNode handle, GraphPtr* graph, uint32_t* place = nullptr);
  size_t live() const { return graphs_.live(); }

  Slots<GraphInstance, 9>& instances() { return instances_; }

 private:
  Slots<GraphPtr, 5> graphs_;
  Slots<NodeRef, 8> nodes_;
  Slots<GraphInstance, 9> instances_;
};

}  // namespace simcuda
