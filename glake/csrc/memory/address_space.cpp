#include "memory/address_space.h"

#include <sys/resource.h>

#include <algorithm>

namespace glake {
namespace {

// What a process may do about a refused reservation where its addresses are limited.
std::string address_limit_text() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return "; this process may have " + size_text(limit.rlim_cur) +
         " of addresses in all (ulimit -v), and glake needs about five times the device's memory, "
         "5 GiB at least: raise that limit (ulimit -v unlimited), or, above that, take a smaller "
         "simulated device (GLAKE_SIM_MEMORY)";
}

}  // namespace

bool DeferredReleases::attempt(DeferredRelease& deferred) {
  if (deferred.bytes != 0) {
    if (!refusals_.note("cuMemUnmap", driver_.unmap(deferred.at, deferred.bytes)).ok())
      return false;
    deferred.bytes = 0;
    idle_ += deferred.handles.size();
  }
  while (!deferred.handles.empty()) {
    if (!refusals_.note("cuMemRelease", driver_.release(deferred.handles.back())).ok())
      return false;
    deferred.handles.pop_back();
    --handles_;
    --idle_;
  }
  if (deferred.settled) deferred.settled();
  return true;
}

bool DeferredReleases::defer(DeferredRelease deferred) {
  handles_ += deferred.handles.size();
  if (deferred.bytes == 0) idle_ += deferred.handles.size();
  if (attempt(deferred)) return true;
  deferred_.push_back(std::move(deferred));
  return false;
}

bool DeferredReleases::settle() {
  for (auto it = deferred_.begin(); it != deferred_.end();) {
    it = attempt(*it) ? deferred_.erase(it) : std::next(it);
  }
  return deferred_.empty();
}

void DeferredReleases::keep_mapped() {
  for (auto it = deferred_.begin(); it != deferred_.end();) {
    DeferredRelease& deferred = *it;
    uint64_t kept = deferred.bytes != 0 && deferred.keep ? deferred.keep().count : 0;
    if (kept != 0) {
      deferred.bytes = 0;
      deferred.settled = nullptr;  // its addresses are in use
      deferred.handles.erase(deferred.handles.begin(),
                             deferred.handles.begin() + static_cast<std::ptrdiff_t>(kept));
      handles_ -= kept;
      idle_ += deferred.handles.size();
    }
    it = kept != 0 && deferred.handles.empty() ? deferred_.erase(it) : std::next(it);
  }
}

bool DeferredReleases::take(Handle* handle) {
  for (auto it = deferred_.begin(); it != deferred_.end(); ++it) {
    if (it->bytes != 0 || it->handles.empty()) continue;
    *handle = it->handles.back();
    it->handles.pop_back();
    --handles_;
    --idle_;
    if (it->handles.empty()) {
      DeferredRelease paid = std::move(*it);
      deferred_.erase(it);
      if (paid.settled) paid.settled();
    }
    return true;
  }
  return false;
}

Reservation::Reservation(Driver& driver, Heap* heap, Bytes bytes, Bytes slot) : driver_(driver) {
  // Asked for with room to align: drivers differ in the alignments they grant.
  bytes = round_up(bytes, kRegionAlign);
  reserved_bytes_ = bytes + kRegionAlign;
  Status s = driver_.reserve(reserved_bytes_, &reserved_);
  if (!s.ok()) {
    throw Error(s.out_of_memory() ? GLAKE_OUT_OF_MEMORY : GLAKE_DRIVER_ERROR,
                "the driver refused to reserve " + std::to_string(reserved_bytes_ / kGiB) +
                    " GiB of addresses: " + driver_.describe(s) + address_limit_text());
  }
  try {
    region_ = std::make_unique<Region>(round_up(reserved_, kRegionAlign), bytes, slot, heap);
  } catch (...) {
    driver_.free_range(reserved_, reserved_bytes_);
    throw;
  }
  PointerMap::add(region_.get());
}

Reservation::~Reservation() {
  if (region_ != nullptr && reserved_ != 0) PointerMap::remove(region_.get());
}

Status Reservation::release() {
  if (reserved_ == 0) return {};
  Status s = driver_.free_range(reserved_, reserved_bytes_);
  if (s.ok()) {
    PointerMap::remove(region_.get());
    reserved_ = 0;
  }
  return s;
}

void ViewSpace::enter(Address base, Granules n) {
  free_.emplace(base, n);
  by_size_.emplace(n.count, base);
}

ViewSpace::Places::iterator ViewSpace::leave(Places::iterator place) {
  by_size_.erase({place->second.count, place->first});
  return free_.erase(place);
}

Address ViewSpace::take(Granules n) {
  auto best = by_size_.lower_bound({n.count, 0});
  if (best == by_size_.end()) {
    reservations_.push_back(std::make_unique<Reservation>(
        driver_, heap_, std::max(chunk_, round_up(n.bytes(), kRegionAlign)), kMiB));
    Reservation& r = *reservations_.back();
    enter(r.base(), Granules{r.size() / kGranule});
    best = by_size_.lower_bound({n.count, 0});
  }
  auto [count, base] = *best;
  region_of(base).prepare(base, n.bytes());
  leave(free_.find(base));
  if (count != n.count) enter(base + n.bytes(), Granules{count} - n);
  return base;
}

void ViewSpace::give(Address base, Granules n) {
  auto next = free_.lower_bound(base);
  // Never merge across reservations: the pointer map's region differs.
  auto same = [](Address a, Address b) { return PointerMap::find(a) == PointerMap::find(b); };
  if (next != free_.end() && base + n.bytes() == next->first && same(base, next->first)) {
    n = n + next->second;
    next = leave(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second.bytes() == base && same(before->first, base)) {
      base = before->first;
      n = n + before->second;
      leave(before);
    }
  }
  enter(base, n);
}

Status ViewSpace::release() {
  while (!reservations_.empty()) {
    Reservation& r = *reservations_.back();
    Address base = r.base();
    Bytes size = r.size();
    Status s = r.release();
    if (!s.ok()) return s;
    for (auto at = free_.lower_bound(base); at != free_.end() && at->first < base + size;) {
      at = leave(at);
    }
    reservations_.pop_back();
  }
  return {};
}

}  // namespace glake
