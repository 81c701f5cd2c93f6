#include "plan/workers.h"

#include <algorithm>
#include <map>
#include <vector>

namespace glake::transfer {

void spread_workers(TransferPlan* plan) {
  std::vector<Path*> relayed;
  for (PlannedPath& planned : plan->paths) {
    if (planned.path.hops.size() > 1) relayed.push_back(&planned.path);
  }
  // Those with the fewest relays have the least choice.
  std::stable_sort(relayed.begin(), relayed.end(),
                   [](const Path* a, const Path* b) { return a->hops.size() < b->hops.size(); });
  std::map<int, size_t> copies;  // of each GPU's thread, where each path has one chunk
  for (Path* path : relayed) {
    const auto offer = [&](const Place& place) {
      if (!place.host() && copies[place.gpu] < copies[path->worker]) path->worker = place.gpu;
    };
    for (size_t i = 1; i < path->hops.size(); ++i) offer(path->hops[i].from);
    // The ends have the direct path too, which has few chunks.
    offer(path->hops.back().to);
    offer(path->hops.front().from);
    copies[path->worker] += path->hops.size();
  }
}

}  // namespace glake::transfer
