#include "transfer/run/link_shares.h"

#include <algorithm>

#include "base/transfer_tuning.h"

namespace glake::transfer {
std::map<int, double> LinkShares::loads_of(const topology::Route& route) const {
  std::map<int, double> loads;
  for (const auto& load : route) {
    for (const auto& [limit, weight] : topology_->limits_of(load.edge)) {
      loads[limit] += weight * load.share;
    }
  }
  return loads;
}

void LinkShares::join(PathRun* run) {
  const Path& path = run->planned.path;
  for (size_t h = 0; h < run->hops.size(); ++h) {
    const Place &from = path.hops[h].from, &to = path.hops[h].to;
    auto& use = uses_[{from.gpu, from.node, to.gpu, to.node}];
    if (use == nullptr) use = std::make_shared<LinkUse>(loads_of(path.hops[h].route));
    if (run->hops[h].use() != use.get()) run->hops[h].share(use, path.worker);
  }
}

void LinkShares::measure(const std::vector<TransferPtr>& running) {
  if (topology_ == nullptr) return;
  std::vector<double> taken(topology_->limits().size(), 0.0);  // the first limits are the edges
  const auto each_hop = [&](auto&& visit) {
    for (const auto& transfer : running) {
      for (const auto& run : transfer->runs) {
        for (size_t h = 0; h < run->hops.size() && !run->closed; ++h) {
          visit(*transfer, run.get(), h);
        }
      }
    }
  };
  for (const auto& [places, use] : uses_) use->planned = use->chunks = 0;
  each_hop([](const Transfer&, PathRun* run, size_t h) { run->hops[h].worker().flows = 0; });
  each_hop([&](const Transfer& transfer, PathRun* run, size_t h) {
    const Rate planned = run->planned.rate;
    LinkUse* use = run->hops[h].use();
    use->planned += planned;
    use->chunks += static_cast<double>(transfer.left()) * planned /
                   std::max(transfer.plan.rate, planned) / static_cast<double>(run->most(copy_ns_));
    unsigned& flows = run->hops[h].worker().flows;
    flows = std::min(flows + TransferTuning::kLeastFlows, TransferTuning::kMostFlows);
    for (const auto& [limit, load] : use->loads)
      taken[static_cast<size_t>(limit)] += load * planned;
  });
  each_hop([&](const Transfer&, PathRun* run, size_t h) {
    Rate link = 1e9, spare = 1e9;
    for (const auto& load : run->planned.path.hops[h].route) {
      const Rate rate = topology_->rate(load.edge);
      link = std::min(link, rate / load.share);
      spare = std::min(spare, (rate - taken[static_cast<size_t>(load.edge)]) / load.share);
    }
    const Rate planned = run->planned.rate;
    run->hops[h].set_link(link, planned + spare,
                          spare > (TransferTuning::kMuchFaster - 1) * planned);
  });
  for (const auto& [places, use] : uses_) {
    const auto back = uses_.find({places[2], places[3], places[0], places[1]});
    const bool both = back != uses_.end() && coupled(*use, *back->second, taken);
    use->back = both ? back->second.get() : nullptr;
  }
  for (const auto& transfer : running) share(transfer.get(), running.size() == 1, taken);
}

// Whether the two directions of a link together fill a limit in which both count.
bool LinkShares::coupled(const LinkUse& one, const LinkUse& other,
                         const std::vector<double>& taken) const {
  if (one.planned > TransferTuning::kAlike * other.planned ||
      other.planned > TransferTuning::kAlike * one.planned)
    return false;
  if (std::min(one.chunks, other.chunks) < TransferTuning::kManyChunks) return false;
  for (const auto& [limit, load] : one.loads) {
    const auto back = other.loads.find(limit);
    if (back == other.loads.end()) continue;
    const double both = load * one.planned + back->second * other.planned;
    const double all = taken[static_cast<size_t>(limit)];
    const double most = topology_->limits()[static_cast<size_t>(limit)].limit;
    if (both > TransferTuning::kFullLimit * all && all > TransferTuning::kFullLimit * most)
      return true;
  }
  return false;
}

// Decides which runs are held to their planned share. If several transfers run, all runs are. A run
// over two full links is, because it takes from both. So is a run that shares a full link with runs
// of another socket's memory, which would otherwise end later. Over a full link, runs with a higher
// rate get more flows, in proportion to it.
void LinkShares::share(Transfer* transfer, bool alone, const std::vector<double>& taken) const {
  std::vector<std::vector<int>> full;
  for (const auto& run : transfer->runs) {
    full.push_back(run->closed ? std::vector<int>() : full_limits(*run, taken));
    run->paced = !alone || full.back().size() > 1;
  }
  for (size_t i = 0; i < full.size(); ++i) {
    PathRun& run = *transfer->runs[i];
    run.across = false;
    for (size_t j = 0; j < full.size(); ++j) {
      const bool shared = std::find_first_of(full[i].begin(), full[i].end(), full[j].begin(),
                                             full[j].end()) != full[i].end();
      run.across = run.across || (shared && transfer->runs[j]->node() != run.node());
    }
    run.paced = run.paced || run.across;
    for (const HopMeter& hop : run.hops) {
      Rate widest = 0;
      for (size_t j = 0; j < full.size(); ++j) {
        const bool beside = j != i && std::any_of(full[i].begin(), full[i].end(), [&](int limit) {
                              return hop.use()->loads.count(limit) != 0 &&
                                     std::count(full[j].begin(), full[j].end(), limit) != 0;
                            });
        if (beside) widest = std::max(widest, transfer->runs[j]->planned.rate);
      }
      const double times = widest > 0 ? run.planned.rate / widest : 0;
      unsigned& flows = hop.worker().flows;
      flows = std::clamp(static_cast<unsigned>(TransferTuning::kLeastFlows * times), flows,
                         TransferTuning::kMostFlows);
    }
  }
}

// The limits that the run shares with others and that have no room left.
std::vector<int> LinkShares::full_limits(const PathRun& run,
                                         const std::vector<double>& taken) const {
  std::map<int, double> own;
  for (const HopMeter& hop : run.hops) {
    for (const auto& [limit, load] : hop.use()->loads) own[limit] += load * run.planned.rate;
  }
  std::vector<int> full;
  for (const auto& [limit, rate] : own) {
    const double all = taken[static_cast<size_t>(limit)];
    const double most = topology_->limits()[static_cast<size_t>(limit)].limit;
    if (all > TransferTuning::kFullLimit * most && rate < TransferTuning::kFullLimit * all)
      full.push_back(limit);
  }
  return full;
}

}  // namespace glake::transfer
