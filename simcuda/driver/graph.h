// Graphs: the work a capture took in, with its order, and instances of it that are launched again
// and again. CUDA Driver API, Graph Management; CUDA C++ Programming Guide, CUDA Graphs.
#pragma once

#include "op.h"
#include "types.h"
#include "user_object.h"

namespace simcuda {

// What must come before a piece of captured work: places in Graph::nodes, in growing order.
using After = std::vector<uint32_t>;
void merge(After* into, const After& more);

struct GraphNode {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  OpPtr op;                      // as captured; a launch enqueues a copy
  const char* kernel = nullptr;  // counted at each launch
  uint64_t event = 0;            // of an external record or wait
  After after;      // all of them have lower places: the order of nodes is one to run in
  uint64_t id = 0;  // its handle
};

struct Graph {
  std::vector<GraphNode> nodes;
  HeldObjects objects;
  bool open = false;  // a capture is adding to it

  // Whether all of `places` are among `ends` or come before one of them.
  bool leads(const After& places, const After& ends) const;
};
using GraphPtr = std::shared_ptr<Graph>;

struct NodeRef {
  std::weak_ptr<Graph> graph;
  uint32_t place = 0;
};

// "A graph instance is a snapshot": what happens to its graph later does not change it.
struct GraphInstance {
  std::shared_ptr<const std::vector<GraphNode>> nodes;
  std::shared_ptr<const HeldObjects> objects;  // launches under way hold them too
  OpPtr last;                                  // of the launch before
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
  // nullptr: no such node, or its graph is gone.
  GraphNode* find_node(CUgraphNode handle, GraphPtr* graph, uint32_t* place = nullptr);
  size_t live() const { return graphs_.live(); }

  Slots<GraphInstance, 9>& instances() { return instances_; }

 private:
  Slots<GraphPtr, 5> graphs_;
  Slots<NodeRef, 8> nodes_;
  Slots<GraphInstance, 9> instances_;
};

}  // namespace simcuda
