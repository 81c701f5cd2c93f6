#include "core/granule_pool.h"

namespace glake {

void GranulePool::add(const Arena& arena) {
  if (homes_.size() <= static_cast<size_t>(arena.id())) homes_.resize(arena.id() + 1);
  homes_[arena.id()].resize(arena.granule_count());
}

Status GranulePool::back(const Arena& arena, Address begin, Granules n, bool* owed,
                         const std::function<void()>& settled) {
  std::vector<Granule>& home = homes_[arena.id()];
  uint64_t first = arena.granule_of(begin);
  Status s;
  uint64_t mapped = 0, created = 0;
  for (; created < n.count; ++created) {
    Granule& granule = home[first + created];
    s = driver_.create(device_, &granule.handle);
    if (!s.ok()) break;
    s = driver_.map(begin + created * kGranule, granule.handle);
    if (!s.ok()) {
      ++created;
      break;
    }
    ++mapped;
  }
  if (s.ok()) s = driver_.set_access(begin, n.bytes(), grants_);
  *owed = false;
  if (s.ok()) {
    physical_ += n.count;
    own_ += n.count;
    return s;
  }
  Debt undo{begin, mapped * kGranule, {}, {}};
  for (uint64_t i = 0; i < created; ++i) {
    undo.handles.push_back(home[first + i].handle);
    home[first + i].handle = 0;
  }
  undo.settled = settled;
  *owed = !debts_.owe(std::move(undo));
  return s;
}

Status GranulePool::unback(const Arena& arena, Address begin, Granules n) {
  Status s = driver_.unmap(begin, n.bytes());
  if (!s.ok()) return s;
  std::vector<Granule>& home = homes_[arena.id()];
  Debt releases;
  for (uint64_t i = 0; i < n.count; ++i) {
    Granule& granule = home[arena.granule_of(begin) + i];
    releases.handles.push_back(granule.handle);
    granule.handle = 0;
  }
  physical_ -= n.count;
  own_ -= n.count;
  debts_.owe(std::move(releases));
  return s;
}

}  // namespace glake
