#include "transfer/link_shares.h"

#include <algorithm>

namespace glake::transfer {
namespace {

constexpr double kMuchFaster = 2;    // a link than what a lane asks of it
constexpr double kFullLimit = 0.95;  // of a limit
constexpr double kAlike = 1.25;      // rates of two ways, at most, whose copies begin together
constexpr double kManyChunks = 12;   // each way: fewer do not make up for waiting

}  // namespace

std::map<int, double> LinkShares::loads_of(const topology::Route& route) const {
  std::map<int, double> loads;
  for (const auto& load : route) {
    for (const auto& [limit, weight] : topology_->limits_of(load.edge)) {
      loads[limit] += weight * load.share;
    }
  }
  return loads;
}

void LinkShares::join(Lane* lane) {
  const Path& path = lane->planned.path;
  for (size_t h = 0; h < lane->hops.size(); ++h) {
    const Place &from = path.hops[h].from, &to = path.hops[h].to;
    auto& use = uses_[{from.gpu, from.node, to.gpu, to.node}];
    if (use == nullptr) use = std::make_shared<LinkUse>(loads_of(path.hops[h].route));
    if (lane->hops[h].use() != use.get()) lane->hops[h].share(use, path.worker);
  }
}

void LinkShares::measure(const std::vector<TransferPtr>& running) {
  if (topology_ == nullptr) return;
  std::vector<double> taken(topology_->limits().size(), 0.0);  // edges are the first limits
  const auto each_hop = [&](auto&& visit) {
    for (const auto& transfer : running) {
      for (const auto& lane : transfer->lanes) {
        for (size_t h = 0; h < lane->hops.size() && !lane->closed; ++h) {
          visit(*transfer, lane.get(), h);
        }
      }
    }
  };
  for (const auto& [places, use] : uses_) use->planned = use->chunks = 0;
  each_hop([](const Transfer&, Lane* lane, size_t h) { lane->hops[h].worker().flows = 0; });
  each_hop([&](const Transfer& transfer, Lane* lane, size_t h) {
    const Rate planned = lane->planned.rate;
    LinkUse* use = lane->hops[h].use();
    use->planned += planned;
    use->chunks += static_cast<double>(transfer.left()) * planned /
                   std::max(transfer.plan.rate, planned) /
                   static_cast<double>(lane->most(copy_ns_));
    unsigned& flows = lane->hops[h].worker().flows;
    flows = std::min(flows + kLeastFlows, kMostFlows);
    for (const auto& [limit, load] : use->loads)
      taken[static_cast<size_t>(limit)] += load * planned;
  });
  each_hop([&](const Transfer&, Lane* lane, size_t h) {
    Rate link = 1e9, spare = 1e9;
    for (const auto& load : lane->planned.path.hops[h].route) {
      const Rate rate = topology_->rate(load.edge);
      link = std::min(link, rate / load.share);
      spare = std::min(spare, (rate - taken[static_cast<size_t>(load.edge)]) / load.share);
    }
    const Rate planned = lane->planned.rate;
    lane->hops[h].set_link(link, planned + spare, spare > (kMuchFaster - 1) * planned);
  });
  for (const auto& [places, use] : uses_) {
    const auto back = uses_.find({places[2], places[3], places[0], places[1]});
    const bool both = back != uses_.end() && coupled(*use, *back->second, taken);
    use->back = both ? back->second.get() : nullptr;
  }
  for (const auto& transfer : running) share(transfer.get(), running.size() == 1, taken);
}

// Whether the two ways of a link fill, between themselves, a limit that counts both.
bool LinkShares::coupled(const LinkUse& one, const LinkUse& other,
                         const std::vector<double>& taken) const {
  if (one.planned > kAlike * other.planned || other.planned > kAlike * one.planned) return false;
  if (std::min(one.chunks, other.chunks) < kManyChunks) return false;
  for (const auto& [limit, load] : one.loads) {
    const auto back = other.loads.find(limit);
    if (back == other.loads.end()) continue;
    const double both = load * one.planned + back->second * other.planned;
    const double all = taken[static_cast<size_t>(limit)];
    const double most = topology_->limits()[static_cast<size_t>(limit)].limit;
    if (both > kFullLimit * all && all > kFullLimit * most) return true;
  }
  return false;
}

// A lane that goes over two full links takes from both, and is held to its share; so is one that
// shares a full link with lanes of another socket's memory, which would be done later. In a full
// link a wide lane has as many more flows as it is wider than those beside it.
void LinkShares::share(Transfer* transfer, bool alone, const std::vector<double>& taken) const {
  std::vector<std::vector<int>> full;
  for (const auto& lane : transfer->lanes) {
    full.push_back(lane->closed ? std::vector<int>() : full_limits(*lane, taken));
    lane->paced = !alone || full.back().size() > 1;
  }
  for (size_t i = 0; i < full.size(); ++i) {
    Lane& lane = *transfer->lanes[i];
    lane.across = false;
    for (size_t j = 0; j < full.size(); ++j) {
      const bool shared = std::find_first_of(full[i].begin(), full[i].end(), full[j].begin(),
                                             full[j].end()) != full[i].end();
      lane.across = lane.across || (shared && transfer->lanes[j]->node() != lane.node());
    }
    lane.paced = lane.paced || lane.across;
    for (const HopMeter& hop : lane.hops) {
      Rate widest = 0;
      for (size_t j = 0; j < full.size(); ++j) {
        const bool beside = j != i && std::any_of(full[i].begin(), full[i].end(), [&](int limit) {
                              return hop.use()->loads.count(limit) != 0 &&
                                     std::count(full[j].begin(), full[j].end(), limit) != 0;
                            });
        if (beside) widest = std::max(widest, transfer->lanes[j]->planned.rate);
      }
      const double times = widest > 0 ? lane.planned.rate / widest : 0;
      unsigned& flows = hop.worker().flows;
      flows = std::clamp(static_cast<unsigned>(kLeastFlows * times), flows, kMostFlows);
    }
  }
}

// Limits that the lane shares with others and that have no room beside them.
std::vector<int> LinkShares::full_limits(const Lane& lane, const std::vector<double>& taken) const {
  std::map<int, double> own;
  for (const HopMeter& hop : lane.hops) {
    for (const auto& [limit, load] : hop.use()->loads) own[limit] += load * lane.planned.rate;
  }
  std::vector<int> full;
  for (const auto& [limit, rate] : own) {
    const double all = taken[static_cast<size_t>(limit)];
    const double most = topology_->limits()[static_cast<size_t>(limit)].limit;
    if (all > kFullLimit * most && rate < kFullLimit * all) full.push_back(limit);
  }
  return full;
}

}  // namespace glake::transfer
