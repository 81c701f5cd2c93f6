#include "transfer/run/companions.h"

#include <algorithm>
#include <utility>

namespace glake::transfer {
namespace {

// Beyond so many everything is forgotten: a guess at more than a program's loops need.
constexpr size_t kMostKnown = 1024;

bool same_ends(const Demand& demand, const Place& src, const Place& dst) {
  return demand.src == src && demand.dst == dst;
}

}  // namespace

Companions::Key Companions::key_of(const Companion& copy) {
  const Place &src = copy.demand.src, &dst = copy.demand.dst;
  const int size = 64 - __builtin_clzll(copy.bytes | 1);
  return {src.gpu, src.host() ? src.node : 0, dst.gpu, dst.host() ? dst.node : 0, size};
}

std::vector<Companion> Companions::begin(uint64_t now, uint64_t until, const Companion& copy) {
  const bool together = std::any_of(open_.begin(), open_.end(),
                                    [&](const Open& one) { return !one.done && one.until > now; });
  for (size_t i = open_.size(); i-- > 0;) {
    Open& one = open_[i];
    const bool again = same_ends(one.copy.demand, copy.demand.src, copy.demand.dst);
    if (again || !together || one.until <= now) {
      close(i);
      continue;
    }
    const bool known = std::any_of(one.came.begin(), one.came.end(), [&](const Companion& other) {
      return same_ends(other.demand, copy.demand.src, copy.demand.dst);
    });
    if (!known) one.came.push_back(copy);
  }
  open_.push_back({copy, until, false, {}});
  const auto found = known_.find(key_of(copy));
  return found != known_.end() ? found->second : std::vector<Companion>();
}

void Companions::ended(const Place& src, const Place& dst) {
  for (Open& one : open_) one.done = one.done || same_ends(one.copy.demand, src, dst);
}

void Companions::close(size_t which) {
  if (known_.size() >= kMostKnown) known_.clear();
  known_[key_of(open_[which].copy)] = std::move(open_[which].came);
  open_.erase(open_.begin() + static_cast<ptrdiff_t>(which));
}

}  // namespace glake::transfer
