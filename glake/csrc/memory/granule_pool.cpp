#include "memory/granule_pool.h"

namespace glake {

void GranulePool::add(const Arena& arena) {
  if (homes_.size() <= static_cast<size_t>(arena.id())) homes_.resize(arena.id() + 1);
  homes_[arena.id()].resize(arena.granule_count());
}

Status GranulePool::build(uint64_t first, std::vector<Granule>& home, Address begin, Granules n,
                          uint64_t* created, uint64_t* mapped) {
  had_at_most_ = false;
  Bytes creatable = driver_.creatable(device_);
  for (; *created < n.count;) {
    Handle& handle = home[first + *created].handle;
    if (!deferred_.take(&handle)) {
      if (creatable < kGranule) return refused_by_headroom({*created});
      creatable -= kGranule;
      Status s = driver_.create(device_, &handle);
      if (!s.ok()) return refused("cuMemCreate", {*created}, s);
    }
    ++*created;
    Status s = driver_.map(begin + *mapped * kGranule, handle);
    if (!s.ok()) return refused("cuMemMap", {*mapped}, s);
    ++*mapped;
  }
  Status s = driver_.set_access(begin, n.bytes(), grants_);
  had_at_most_ = !s.ok();
  return s.ok() ? s : refused("cuMemSetAccess", n - Granules{1}, s);
}

Status GranulePool::refused(const char* call, Granules had, Status s) {
  had_ = had;
  refused_ = std::string(call) + ": " + driver_.describe(s);
  return s;
}

Status GranulePool::refused_by_headroom(Granules had) {
  had_ = had;
  refused_.clear();
  return Status::no_memory();
}

Status GranulePool::back(const Arena& arena, Address begin, Granules n,
                         const std::function<void()>& settled,
                         const std::function<void(Granules)>& kept) {
  std::vector<Granule>& home = homes_[arena.id()];
  uint64_t first = arena.granule_of(begin);
  uint64_t created = 0, mapped = 0;
  Status s = build(first, home, begin, n, &created, &mapped);
  if (s.ok()) {
    physical_ += n.count;
    own_ += n.count;
    return s;
  }
  DeferredRelease undo;
  undo.at = begin;
  undo.bytes = mapped * kGranule;
  for (uint64_t i = 0; i < created; ++i) {
    undo.handles.push_back(home[first + i].handle);
    home[first + i].handle = 0;
  }
  undo.settled = settled;
  std::vector<Handle> handles(undo.handles.begin(),
                              undo.handles.begin() + static_cast<std::ptrdiff_t>(mapped));
  undo.keep = [this, id = arena.id(), first, begin, handles, kept] {
    Granules count{handles.size()};
    if (!driver_.set_access(begin, count.bytes(), grants_).ok()) return Granules{0};
    for (uint64_t i = 0; i < count.count; ++i) homes_[id][first + i].handle = handles[i];
    physical_ += count.count;
    own_ += count.count;
    kept(count);
    return count;
  };
  deferred_.defer(std::move(undo));
  return s;
}

Status GranulePool::create(const Arena& arena, uint64_t g) {
  Handle& handle = homes_[arena.id()][g].handle;
  if (!deferred_.take(&handle)) {
    if (driver_.creatable(device_) < kGranule) return refused_by_headroom({0});
    Status s = driver_.create(device_, &handle);
    if (!s.ok()) {
      handle = 0;
      return refused("cuMemCreate", {0}, s);
    }
  }
  ++physical_;
  ++own_;
  return {};
}

Status GranulePool::map(const Arena& arena, uint64_t g) {
  Status s = driver_.map(arena.granule_at(g), homes_[arena.id()][g].handle);
  return s.ok() ? s : refused("cuMemMap", {0}, s);
}

void GranulePool::release(const Arena& arena, uint64_t g, Granules n) {
  DeferredRelease releases;
  for (uint64_t i = 0; i < n.count; ++i) {
    Granule& granule = homes_[arena.id()][g + i];
    releases.handles.push_back(granule.handle);
    granule.handle = 0;
  }
  physical_ -= n.count;
  own_ -= n.count;
  deferred_.defer(std::move(releases));
}

Status GranulePool::unback(const Arena& arena, Address begin, Granules n) {
  Status s = refusals_.note("cuMemUnmap", driver_.unmap(begin, n.bytes()));
  if (!s.ok()) {
    refusals_.keep(n);
    return s;
  }
  std::vector<Granule>& home = homes_[arena.id()];
  DeferredRelease releases;
  for (uint64_t i = 0; i < n.count; ++i) {
    Granule& granule = home[arena.granule_of(begin) + i];
    releases.handles.push_back(granule.handle);
    granule.handle = 0;
  }
  physical_ -= n.count;
  own_ -= n.count;
  deferred_.defer(std::move(releases));
  return s;
}

}  // namespace glake
