#include "transfer/run/link_times.h"

#include <algorithm>
#include <map>

namespace glake::transfer {

PathTimes LinkTimes::of(const Path& path, const std::vector<double>& parts) const {
  std::map<int, double> times;
  if (topology_ == nullptr) return {};
  for (const Hop& hop : path.hops) {
    for (const auto& load : hop.route) {
      for (const auto& [limit, weight] : topology_->limits_of(load.edge)) {
        const auto at = static_cast<size_t>(limit);
        const double part = parts.empty() ? 1 : parts[at];
        times[limit] += weight * load.share / std::max(topology_->limits()[at].limit * part, 1e-6);
      }
    }
  }
  return {times.begin(), times.end()};
}

void LinkTimes::add(const void* key, std::vector<std::pair<int, double>> ns, uint64_t now,
                    uint64_t end) {
  loads_.push_back({key, std::move(ns), now, std::max(end, now + 1)});
}

void LinkTimes::remove(const void* key) {
  const auto same = [&](const Load& load) { return load.key == key; };
  loads_.erase(std::remove_if(loads_.begin(), loads_.end(), same), loads_.end());
}

void LinkTimes::forget_ended(uint64_t now) {
  const auto ended = [&](const Load& load) { return load.key == nullptr && load.end <= now; };
  loads_.erase(std::remove_if(loads_.begin(), loads_.end(), ended), loads_.end());
}

// What a copy has left is taken to go down evenly; of one that is late, nothing is left.
std::vector<double> LinkTimes::busy(uint64_t now) const {
  std::vector<double> busy(topology_ != nullptr ? topology_->limits().size() : 0);
  for (const Load& load : loads_) {
    if (now >= load.end) continue;
    const double left =
        static_cast<double>(load.end - now) / static_cast<double>(load.end - load.begin);
    for (const auto& [limit, ns] : load.ns) busy[static_cast<size_t>(limit)] += left * ns;
  }
  return busy;
}

}  // namespace glake::transfer
