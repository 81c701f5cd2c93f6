#include "plan/paths.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/numbers.h"

namespace glake::transfer {
namespace {

using topology::Load;
using topology::Route;
using topology::Topology;

// Finds paths over places that a copy may pass through: any GPU that is not an end, and host memory
// if both ends are GPUs.
class Finder {
 public:
  Finder(const Topology& topology, const Place& src, const Place& dst, int relays)
      : topology_(topology), src_(src), dst_(dst), most_(relays) {}

  Candidates find() {
    add({src_, dst_});
    if (src_.host() != dst_.host()) {
      over_relays({src_}, 0);
    } else if (!src_.host() && src_.gpu != dst_.gpu) {
      over_relays({src_}, 0);
    }
    std::stable_sort(found_.paths.begin(), found_.paths.end(),
                     [](const Candidate& a, const Candidate& b) {
                       return a.path.hops.size() < b.path.hops.size();
                     });
    drop_dominated();
    refuse_unlinked();
    return std::move(found_);
  }

 private:
  // Extends the way by one place, and ends it at the destination where that is possible.
  void over_relays(std::vector<Place> way, int relays) {
    const Place at = way.back();
    const bool staged = std::any_of(way.begin() + 1, way.end(), [](auto& p) { return p.host(); });
    if (way.size() > 1 && reaches(at, dst_)) add(joined(way, dst_));
    if (!src_.host() && !dst_.host() && !staged) {  // between GPUs, once through host memory
      for (int node = 0; node < topology_.sockets(); ++node) {
        const Place next{-1, node};
        if (!has_shortcut(way, next)) over_relays(joined(way, next), relays);
      }
    }
    if (relays == most_) return;
    for (int gpu = 0; gpu < topology_.gpus(); ++gpu) {
      const Place next{gpu, kSpread};
      if (next == src_ || next == dst_ || !reaches(at, next)) continue;
      if (std::find(way.begin(), way.end(), next) != way.end()) continue;
      if (has_shortcut(way, next)) continue;
      over_relays(joined(way, next), relays + 1);
    }
  }

  // Whether the way could leave out some of its last places on its way to `next`, and would put no
  // more load on any limit. Then any path that goes on from there is dominated.
  bool has_shortcut(const std::vector<Place>& way, const Place& next) {
    std::map<int, double> loads;
    const auto pass = [&](const Place& from, const Place& to) {
      for (const Load& load : step(from, to).loads) loads[load.edge] += load.share;
    };
    pass(way.back(), next);
    for (size_t i = way.size() - 1; i-- > 0;) {
      pass(way[i], way[i + 1]);
      if (!reaches(way[i], next)) continue;
      const Step& direct = step(way[i], next);
      const auto fits = [&](const Load& load) {
        const auto found = loads.find(load.edge);
        return found != loads.end() && found->second >= load.share - 1e-9;
      };
      if (!direct.route.empty() && std::all_of(direct.loads.begin(), direct.loads.end(), fits)) {
        return true;
      }
    }
    return false;
  }

  static std::vector<Place> joined(std::vector<Place> way, const Place& next) {
    way.push_back(next);
    return way;
  }
  // Whether there may be a hop between the two. There may be one between the host and a GPU, and
  // between GPUs that can have peer access. Over a root complex a copy between peers loads the same
  // links as one over host memory, but not the memory.
  bool reaches(const Place& from, const Place& to) const {
    if (from.host() && to.host()) return false;
    return from.host() || to.host() || topology_.peers(from.gpu, to.gpu);
  }

  std::string name(const Place& place) const {
    if (!place.host()) return device_text(place.gpu);
    const bool end = place == src_ || place == dst_;
    return end || topology_.sockets() == 1 ? "cpu" : "cpu:" + std::to_string(place.node);
  }

  // The load of one hop on the limits. It is computed once, because a few hops make up hundreds of
  // paths.
  struct Step {
    Route route, loads;
  };
  const Step& step(const Place& from, const Place& to) {
    const std::array<int, 4> key{from.gpu, from.host() ? from.node : 0, to.gpu,
                                 to.host() ? to.node : 0};
    const auto found = steps_.find(key);
    if (found != steps_.end()) return found->second;
    Step made{plain_route(topology_, from, to), {}};
    std::map<int, double> loads;
    for (const Load& load : made.route) {
      for (const Load& limit : topology_.limits_of(load.edge)) {
        loads[limit.edge] += load.share * limit.share;
      }
    }
    for (const auto& [limit, load] : loads) made.loads.push_back({limit, load});
    return steps_.emplace(key, std::move(made)).first->second;
  }

  void add(const std::vector<Place>& way) {
    Candidate made;
    std::map<int, double> loads;
    for (size_t i = 1; i < way.size(); ++i) {
      const Step& taken = step(way[i - 1], way[i]);
      if (taken.route.empty()) return;
      for (const Load& load : taken.loads) loads[load.edge] += load.share;
      made.path.hops.push_back({way[i - 1], way[i], taken.route});
    }
    for (const auto& [limit, load] : loads) made.loads.push_back({limit, load});
    for (size_t i = 0; i < way.size(); ++i) {
      made.path.name += (i == 0 ? "" : ">") + name(way[i]);
      if (i == 0 || i + 1 == way.size()) continue;
      if (!way[i].host()) made.relays.push_back(way[i].gpu);
    }
    made.direct = way.size() == 2;
    made.path.worker = src_.host() ? dst_.gpu : src_.gpu;
    if (!made.relays.empty()) made.path.worker = made.relays.front();
    found_.paths.push_back(std::move(made));
  }

  static bool within(const Candidate& less, const Candidate& more) {
    size_t at = 0;
    for (const Load& load : less.loads) {
      while (at < more.loads.size() && more.loads[at].edge < load.edge) ++at;
      if (at == more.loads.size() || more.loads[at].edge != load.edge ||
          more.loads[at].share < load.share - 1e-9) {
        return false;
      }
    }
    return true;
  }

  void drop_dominated() {
    std::vector<Candidate> kept;
    for (Candidate& candidate : found_.paths) {
      const auto better = std::find_if(kept.begin(), kept.end(),
                                       [&](auto& other) { return within(other, candidate); });
      if (better == kept.end()) {
        kept.push_back(std::move(candidate));
      } else if (candidate.path.hops.size() == 2) {
        found_.refusals.push_back(
            {candidate.path.name,
             "takes all the links that " + better->path.name + " takes, and more"});
      }
    }
    found_.paths = std::move(kept);
  }

  void refuse_unlinked() {
    if (src_.host() == dst_.host()) return;
    const int end = src_.host() ? dst_.gpu : src_.gpu;
    std::string without;
    int count = 0;
    for (int gpu = 0; gpu < topology_.gpus(); ++gpu) {
      if (gpu == end || topology_.linked(gpu, end)) continue;
      without += (count++ == 0 ? "" : ", ") + device_text(gpu);
    }
    if (count == 0) return;
    without += " alone";  // as second relays, behind a linked GPU, they are useful
    found_.refusals.push_back({"over " + without, "no NVLink with " + device_text(end) +
                                                      ": they would share its own PCIe link"});
  }

  const Topology& topology_;
  const Place src_, dst_;
  const int most_;
  std::map<std::array<int, 4>, Step> steps_;
  Candidates found_;
};

}  // namespace

Route plain_route(const Topology& topology, Place src, Place dst) {
  if (src.host() && src.node == kStriped) src.node = kSpread;
  if (dst.host() && dst.node == kStriped) dst.node = kSpread;
  if (src.host() && dst.host()) return topology.host_to_host(src.node);
  if (src.host()) return topology.host_to_device(src.node, dst.gpu);
  if (dst.host()) return topology.device_to_host(src.gpu, dst.node);
  return topology.device_to_device(src.gpu, dst.gpu);
}

Candidates find_candidates(const Topology& topology, const Place& src, const Place& dst,
                           int relays) {
  const Place& host = src.host() ? src : dst;
  if (host.node != kStriped || src.host() == dst.host()) {
    return Finder(topology, src, dst, relays).find();
  }
  Candidates all;
  for (int node = 0; node < topology.sockets(); ++node) {
    const Place here{-1, node};
    Candidates one =
        Finder(topology, src.host() ? here : src, src.host() ? dst : here, relays).find();
    for (Candidate& candidate : one.paths) {
      candidate.part = node;
      if (topology.sockets() > 1) {
        const size_t at = candidate.path.name.find("cpu");
        candidate.path.name.insert(at + 3, ":" + std::to_string(node));
      }
      all.paths.push_back(std::move(candidate));
    }
    if (node == 0) all.refusals = std::move(one.refusals);
  }
  return all;
}

}  // namespace glake::transfer
