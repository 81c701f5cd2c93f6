// The objects behind graphs and their nodes.
#include "graph.h"

#include <algorithm>

namespace simcuda {

void merge(After* into, const After& more) {
  After both;
  std::set_union(into->begin(), into->end(), more.begin(), more.end(), std::back_inserter(both));
  *into = std::move(both);
}

bool Graph::leads(const After& places, const After& ends) const {
  std::vector<char> reached(nodes.size(), 0);
  for (const uint32_t end : ends) reached[end] = 1;
  for (size_t i = nodes.size(); i-- > 0;) {
    if (reached[i] == 0) continue;
    for (const uint32_t before : nodes[i].after) reached[before] = 1;
  }
  return std::all_of(places.begin(), places.end(), [&](uint32_t at) { return reached[at] != 0; });
}

void Graphs::remove(uint64_t id) {
  for (const GraphNode& node : (*graphs_.find(id))->nodes) nodes_.remove(node.id);
  graphs_.remove(id);
}

CUgraphNode Graphs::add_node(const GraphPtr& graph, GraphNode node) {
  node.id = nodes_.add({graph, static_cast<uint32_t>(graph->nodes.size())});
  const uint64_t id = node.id;
  graph->nodes.push_back(std::move(node));
  return reinterpret_cast<CUgraphNode>(id);
}

GraphNode* Graphs::find_node(CUgraphNode handle, GraphPtr* graph, uint32_t* place) {
  const NodeRef* found = nodes_.find(reinterpret_cast<uint64_t>(handle));
  if (found == nullptr) return nullptr;
  *graph = found->graph.lock();
  if (*graph == nullptr) return nullptr;
  if (place != nullptr) *place = found->place;
  return &(*graph)->nodes[found->place];
}

}  // namespace simcuda
