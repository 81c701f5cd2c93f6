#include "plan/engines.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace glake::transfer {
namespace {

using topology::Load;
using topology::Route;
using topology::Topology;

bool may_read(const Topology& topology, const Path& path) {
  const Hop& first = path.hops.front();
  return path.hops.size() > 1 && !first.from.host() && !first.to.host() &&
         topology.linked(first.from.gpu, first.to.gpu);
}

// How much of each limit copies take.
class Used {
 public:
  explicit Used(const Topology& topology) : topology_(topology), of_(topology.limits().size(), 0) {}

  void add(const Route& route, Rate rate) {
    for (const Load& load : route) {
      for (const Load& limit : topology_.limits_of(load.edge)) {
        of_[static_cast<size_t>(limit.edge)] += rate * load.share * limit.share;
      }
    }
  }
  // The largest rate up to `wanted` at which a further copy over the route exceeds no limit.
  Rate most(const Route& route, Rate wanted) const {
    Rate most = wanted;
    for (const Load& load : route) {
      for (const Load& limit : topology_.limits_of(load.edge)) {
        const auto at = static_cast<size_t>(limit.edge);
        const double share = load.share * limit.share;
        const double free = topology_.limits()[at].limit * (1 + kSlack) - of_[at];
        if (share * most > free) most = std::max(free / share, 0.0);
      }
    }
    return most;
  }

 private:
  static constexpr double kSlack = 5e-10;
  const Topology& topology_;
  std::vector<double> of_;
};

}  // namespace

void choose_engines(const Topology& topology, const std::vector<Demand>& demands,
                    std::vector<TransferPlan>* plans) {
  Used used(topology);
  for (const TransferPlan& plan : *plans) {
    for (const PlannedPath& path : plan.paths) used.add(route_of(path.path), path.rate);
  }
  for (size_t d = 0; d < plans->size(); ++d) {
    TransferPlan& plan = (*plans)[d];
    if (!demands[d].may_read) continue;
    const bool fast = plan.rate >= TransferTuning::kReadRate;
    const double kept = fast ? 1 - TransferTuning::kReadLoss : 1;
    for (PlannedPath& planned : plan.paths) {
      if (!may_read(topology, planned.path)) continue;
      Hop& first = planned.path.hops.front();
      Route read = topology.device_to_device(first.from.gpu, first.to.gpu, true);
      used.add(first.route, -planned.rate);
      const Rate rate = used.most(read, planned.rate);
      if (rate >= kept * planned.rate) {
        plan.rate -= planned.rate - rate;
        planned.rate = rate;
        first.route = std::move(read);
        first.reads = true;
      }
      used.add(first.route, planned.rate);
    }
  }
}

}  // namespace glake::transfer
